"""Load a simulated fleet: clusters.yaml names the clusters, and a file of sizes describes their nodes and faults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import parse_resources
from ray_multicluster_scheduler.control_plane.config import FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.config.settings import Fraction, Strict
from ray_multicluster_scheduler.control_plane.config.validation_errors import did_you_mean
from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml, read_text
from ray_multicluster_scheduler.simulation.simulated_fleet import (
    FaultKind,
    OthersLoad,
    PlannedFault,
    SimulatedCluster,
    SimulatedFleet,
)
from ray_multicluster_scheduler.simulation.size_syntax import parse_nodes, parse_time


def _time(value: object) -> float:
    try:
        return parse_time(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _nodes(value: object) -> tuple[list[dict[str, float]], float | None]:
    try:
        if isinstance(value, str):
            return parse_nodes(value)
        if isinstance(value, list):
            return [parse_resources(one, what=f"node {number}") for number, one in enumerate(value, start=1)], None
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    raise ValueError("expected text such as 4x{CPU:16}, or a list with one mapping for each node")


Time = Annotated[float, BeforeValidator(_time)]
Nodes = Annotated[Any, BeforeValidator(_nodes)]


class _Step(Strict):
    at: Time
    share: Fraction


class _Others(Strict):
    share: Fraction = 0.0
    every: Time | None = None
    steps: tuple[_Step, ...] = ()


class _Cluster(Strict):
    nodes: Nodes
    speed: Annotated[float, Field(gt=0)] | None = None
    latency: Time = 0.005
    agent_start: Time = 3.0
    snapshot_every: Time = 60.0
    snapshot_delay: Time = 0.0
    snapshot_loss: Fraction = 0.0
    crashes_per_hour: Annotated[float, Field(ge=0)] = 0.0
    job_poll: Time = 0.5
    others: _Others | None = None


class _Fault(Strict):
    at: Time
    cluster: str
    what: FaultKind
    length: Annotated[Time | None, Field(alias="for")] = None
    node: Annotated[int, Field(ge=1)] = 1


class _Document(Strict):
    clusters: dict[str, _Cluster]
    faults: tuple[_Fault, ...] = ()


def load_fleet(
    config: FleetConfig,
    sizes: Path | None = None,
    nodes: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> SimulatedFleet:
    """The clusters of a configuration, with sizes from a file or from texts such as ``4x{CPU:16}@1.5``; texts win.

    Raises ConfigurationError for a cluster without a size, and for a size without a cluster.
    """
    document = _read(sizes) if sizes is not None else _Document(clusters={})
    given = dict(nodes or {})
    source = str(sizes) if sizes is not None else "--nodes"
    for name in (*document.clusters, *given):
        if name not in config.names:
            raise ConfigurationError(
                f"{source} gives a size for {name!r}, which is not in {config.source}"
                f"{did_you_mean(name, config.names)}.",
                cluster=name,
                next_step=f"use one of: {', '.join(config.names)}",
            )
    clusters = []
    for entry in config.clusters:
        spec = document.clusters.get(entry.name)
        if entry.name in given:
            spec = _resized(entry.name, spec, given[entry.name])
        if spec is None:
            raise ConfigurationError(
                f"The cluster {entry.name} has no size; {config.source} holds none.",
                cluster=entry.name,
                next_step=f"add --nodes '{entry.name}=4x{{CPU:16}}', or give a file of sizes with --fleet",
            )
        clusters.append(_cluster(entry.metadata(), spec))
    faults = tuple(PlannedFault(one.at, one.cluster, one.what, one.length, one.node) for one in document.faults)
    return SimulatedFleet(tuple(clusters), settings or config.settings, faults)


def sized_names(sizes: Path) -> list[str]:
    """The names of the clusters in a file of sizes. Raises ConfigurationError."""
    return list(_read(sizes).clusters)


def _read(path: Path) -> _Document:
    text = read_text(path, "give the path of a file of sizes (see docs/simulation.md)")
    try:
        return _Document.model_validate(parse_yaml(text, str(path)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(
            f"{path}: {where + ': ' if where else ''}{message[:1].lower()}{message[1:].rstrip('.')}.",
            next_step="correct it; docs/simulation.md shows every key",
        ) from None


def _resized(name: str, spec: _Cluster | None, text: str) -> _Cluster:
    try:
        shapes, speed = parse_nodes(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"--nodes {name}: {error.message}", cluster=name, next_step=error.next_step) from None
    if spec is None:
        return _Cluster(nodes=text)
    kept = spec.speed if speed is None else speed
    return spec.model_copy(update={"nodes": (shapes, speed), "speed": kept})


def _cluster(metadata: Any, spec: _Cluster) -> SimulatedCluster:
    shapes, speed = spec.nodes
    others = None
    if spec.others is not None:
        steps = tuple((step.at, step.share) for step in spec.others.steps)
        others = OthersLoad(spec.others.share, spec.others.every, steps)
    return SimulatedCluster(
        metadata,
        tuple(shapes),
        speed=spec.speed if spec.speed is not None else speed if speed is not None else 1.0,
        latency_s=spec.latency,
        agent_start_s=spec.agent_start,
        snapshot_every_s=spec.snapshot_every,
        snapshot_delay_s=spec.snapshot_delay,
        snapshot_loss=spec.snapshot_loss,
        crashes_per_hour=spec.crashes_per_hour,
        job_poll_s=spec.job_poll,
        others=others,
    )

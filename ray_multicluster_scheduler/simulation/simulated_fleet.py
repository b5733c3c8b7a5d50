"""SimulatedFleet: describes a fleet for a simulation: clusters with sizes, speeds and faults. Plain data, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self, get_args

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata, Resources
from ray_multicluster_scheduler.common.model.resources import parse_resources
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.simulation.size_syntax import parse_nodes

FaultKind = Literal["cut", "dies", "node_dies"]
FAULT_KINDS: tuple[str, ...] = get_args(FaultKind)
"""See :class:`PlannedFault`."""


@dataclass(frozen=True, slots=True)
class OthersLoad:
    """The share (0..1) of each node that other users want, over time.

    ``steps`` sets the share from a time on. With ``every_s``, each node's share is redrawn at that interval,
    uniformly from 0 to twice ``share``. Other users take what is free, and the rest when our items end.
    """

    share: float = 0.0
    every_s: float | None = None
    steps: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        for share in (self.share, *(one for _, one in self.steps)):
            if not 0 <= share <= 1:
                raise ConfigurationError(f"others: a share is {share:g}.", next_step="give a number from 0 to 1")
        if self.every_s is not None and not self.every_s > 0:
            raise ConfigurationError(f"others: every is {self.every_s:g}.", next_step="give seconds above 0")


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """One cluster. ``speed``: work of 60 s takes 60/speed s there.

    ``latency_s`` is the one-way network latency, ``agent_start_s`` the time to start an agent. The agent pushes changes
    at most every ``snapshot_every_s``; a snapshot is ``snapshot_delay_s`` old when it arrives, and the share
    ``snapshot_loss`` of them is lost. ``crashes_per_hour`` is the crash rate of a running worker. The status of jobs is
    polled every ``job_poll_s``.
    """

    metadata: ClusterMetadata
    nodes: tuple[Resources, ...]
    speed: float = 1.0
    latency_s: float = 0.005
    agent_start_s: float = 3.0
    snapshot_every_s: float = 60.0
    snapshot_delay_s: float = 0.0
    snapshot_loss: float = 0.0
    crashes_per_hour: float = 0.0
    job_poll_s: float = 0.5
    others: OthersLoad | None = None

    def __post_init__(self) -> None:
        if not self.nodes:
            raise self._invalid("has no nodes", "give it at least one, such as 4x{CPU:16}")
        if not self.speed > 0:
            raise self._invalid(f"has the speed {self.speed:g}", "give a number above 0; 1 is normal")
        if not self.snapshot_every_s > 0:
            raise self._invalid(f"has snapshot_every_s {self.snapshot_every_s:g}", "give seconds above 0")
        if not 0 <= self.snapshot_loss <= 1:
            raise self._invalid(f"has snapshot_loss {self.snapshot_loss:g}", "give a share from 0 to 1")
        for key in ("latency_s", "agent_start_s", "snapshot_delay_s", "crashes_per_hour", "job_poll_s"):
            if not getattr(self, key) >= 0:
                raise self._invalid(f"has {key} {getattr(self, key):g}", "give a number, 0 or more")

    @property
    def name(self) -> str:
        return self.metadata.name

    def total(self, resource: str = "CPU") -> float:
        """The amount of all nodes together."""
        return sum(node.get(resource, 0.0) for node in self.nodes)

    def _invalid(self, what: str, next_step: str) -> ConfigurationError:
        return ConfigurationError(f"The simulated cluster {self.name} {what}.", cluster=self.name, next_step=next_step)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault at a known time, for ``for_s`` seconds, or for good if that is None.

    ``cut``: the cluster is unreachable; what runs there goes on until its lease expires. ``dies``: the whole cluster
    dies with all that runs there, and comes back as a new session. ``node_dies``: one node dies (``node`` counts from
    1).
    """

    at: float
    cluster: str
    what: FaultKind
    for_s: float | None = None
    node: int = 1

    def __post_init__(self) -> None:
        if self.what not in FAULT_KINDS:
            raise ConfigurationError(
                f"{self.what!r} is not a kind of fault.", next_step=f"use one of: {', '.join(FAULT_KINDS)}"
            )
        if self.at < 0 or (self.for_s is not None and self.for_s <= 0):
            raise ConfigurationError(
                f"The fault {self.what!r} of {self.cluster} has no duration, or begins before the run.",
                cluster=self.cluster,
                next_step="give `at` as 0 or more, and `for` above 0, or leave `for` out",
            )


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Clusters, the scheduler's settings, and planned faults."""

    clusters: tuple[SimulatedCluster, ...]
    settings: Settings = field(default_factory=Settings)
    faults: tuple[PlannedFault, ...] = ()

    def __post_init__(self) -> None:
        known = {one.name: one for one in self.clusters}
        if not known or len(known) < len(self.clusters):
            raise ConfigurationError(
                "A simulated fleet has no cluster, or two of the same name.", next_step="give each cluster its own name"
            )
        for fault in self.faults:
            cluster = known.get(fault.cluster)
            if cluster is None:
                raise ConfigurationError(
                    f"A fault names the cluster {fault.cluster!r}, which is not simulated.",
                    cluster=fault.cluster,
                    next_step=f"use one of: {', '.join(known)}",
                )
            if fault.what == "node_dies" and not 1 <= fault.node <= len(cluster.nodes):
                raise ConfigurationError(
                    f"A fault names node {fault.node} of {fault.cluster}, which has {len(cluster.nodes)}.",
                    cluster=fault.cluster,
                    next_step=f"give a number from 1 to {len(cluster.nodes)}",
                )

    def capacity(self, resource: str = "CPU", tag: str | None = None) -> float:
        """Resource-seconds of work per second that the clusters with this tag can do: the sum of amount times speed."""
        clusters = (one for one in self.clusters if tag is None or tag in one.metadata.tags)
        return sum(one.total(resource) * one.speed for one in clusters)

    def with_settings(self, settings: Settings) -> Self:
        """The same fleet under other settings."""
        return replace(self, settings=settings)


def cluster(
    name: str,
    nodes: str | list[Mapping[str, object]],
    *,
    tags: tuple[str, ...] = (),
    weight: float = 1.0,
    **values: float,
) -> SimulatedCluster:
    """A simulated cluster in one line: ``cluster("mac", "4x{CPU:16}@1.5", tags=("arm64",))``.

    ``values`` are fields of SimulatedCluster. Raises ConfigurationError.
    """
    shapes, speed = parse_nodes(nodes) if isinstance(nodes, str) else ([parse_resources(one) for one in nodes], None)
    if speed is not None:
        values = {"speed": speed, **values}
    metadata = ClusterMetadata(name, dashboard=f"http://{name}.invalid:8265", tags=tuple(tags), weight=weight)
    return SimulatedCluster(metadata, tuple(shapes), **values)  # type: ignore[arg-type]  # `others` is no number

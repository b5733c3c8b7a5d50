"""Small scenarios, written by hand, in which one thing is sure to happen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.common.model import ClusterMetadata, TaskDescription
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.simulation.faulty.scenario import BEGIN, SETTINGS, Action, Scenario
from tests.unit.lifecycle.driver import task

FREE: dict[str, Any] = {**SETTINGS, "resource_threshold": 1, "submission_interval_s": 0, "prefetch_ms": 0}


def item(task_id: str, cpus: float = 1, runs: float = 1.0, **values: Any) -> TaskDescription:
    """A task that runs this long and succeeds."""
    return task(task_id, cpus, **{"function_digest": f"runs {runs}", **values})


def submit(at: float, *items: TaskDescription) -> list[tuple[Action, TaskDescription]]:
    return [(Action(BEGIN + at, "submit", (one.id, "")), one) for one in items]


def scenario(
    submitted: Iterable[tuple[Action, TaskDescription]],
    actions: Iterable[Action] = (),
    nodes: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
    clusters: Mapping[str, Mapping[str, Any]] | None = None,
    pools: Iterable[Pool] = (),
    **settings: Any,
) -> Scenario:
    """Only these actions, and no message faults. By default one cluster a with one node of 8 CPUs."""
    nodes = nodes or {"a": {"a0": {"CPU": 8.0}}}
    pairs = list(submitted)
    items = {one.id: replace(one, submitted_at=action.at) for action, one in pairs}
    described = tuple(
        ClusterMetadata(name, dashboard=f"http://{name}:8265", **(clusters or {}).get(name, {})) for name in nodes
    )
    everything = sorted([*(action for action, _ in pairs), *actions], key=lambda action: action.at)
    given = {**FREE, **settings}
    return Scenario(1, given, described, nodes, tuple(everything), items, tuple(pools), fault_rate=0.0)


def action(at: float, method: str, *arguments: Any) -> Action:
    return Action(BEGIN + at, method, arguments)

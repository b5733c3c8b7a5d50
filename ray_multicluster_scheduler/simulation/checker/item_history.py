"""What the lines tell of one item, and of one cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ray_multicluster_scheduler.common.model import (
    ClusterMetadata,
    ResourceSnapshot,
    TaskDescription,
    TaskState,
)

WINDOW_S = 8.0
"""So old may be what a snapshot shows, and a little more."""


@dataclass(slots=True)
class Item:
    """One item, as the lines so far tell of it."""

    task: TaskDescription
    number: int
    waits_for: bool = False
    state: TaskState | None = None
    code: str = ""
    code_since: float = -inf
    priority: int = 0
    pinned: str | None = None
    held: bool = False
    attempt: int = 0
    cluster: str = ""
    live: bool = False
    ahead: bool = False
    started: bool = False
    queued_at: float = inf
    node: str | None = None
    """Where it was seen to begin."""
    certain: bool = False
    """Is it surely expected where there was room for it? Once something began, or nodes changed, it may make way."""

    @property
    def waits(self) -> bool:
        """In the queue, and nobody holds it."""
        return self.state is TaskState.QUEUED and self.code != "HELD"

    @property
    def takes(self) -> Mapping[str, float]:
        """What it holds while it is on a cluster."""
        return self.task.requirements if self.started or self.task.actor is None else self.task.placement

    @property
    def only(self) -> str | None:
        """The one cluster that it may go to, if there is but one."""
        if self.pinned is not None:
            return self.pinned
        return self.task.preferred_cluster if self.task.fallback == "wait" else None

    @property
    def shape(self) -> tuple[Any, ...]:
        """All that placement looks at, but for its owner and priority."""
        task = self.task
        return (
            task.kind,
            self.pinned or task.preferred_cluster,
            "wait" if self.pinned is not None else task.fallback,
            tuple(sorted(task.placement.items())),
            task.tags,
            task.require_tags,
            task.allow_clusters,
            task.deny_clusters,
            self.attempt > 0,
            task.bundles,
        )


@dataclass(slots=True)
class Cluster:
    """One cluster, as the lines so far tell of it."""

    metadata: ClusterMetadata
    cordoned: bool = False
    paused: bool = False
    link: str = "none"
    link_up_at: float = 0.0
    link_failed_at: float = -inf
    newest: ResourceSnapshot | None = None
    heard_at: float = -inf
    failed_asking: bool = False
    dashboard_ok: bool = True
    head_ok: bool = True
    dead_since: float | None = None
    """An operator said so, and nothing was heard of it since."""
    failures: int = 0
    """In a row, at the most."""
    may_be_open: bool = False
    last_submission: float = -inf
    seen: deque[tuple[float, dict[str, dict[str, float]]]] = field(default_factory=deque)
    """What was in use by node, by the snapshots of the last while."""
    live: dict[str, Item] = field(default_factory=dict)
    left_at: float = -inf
    """When something of ours was last there."""

    @property
    def name(self) -> str:
        return self.metadata.name

    def totals(self) -> dict[str, Mapping[str, float]]:
        return {} if self.newest is None else {node.node_id: node.total for node in self.newest.nodes}

    def pushed(self) -> bool:
        return self.link == "up" and self.heard_at >= self.link_up_at

    def most_used(self, at: float) -> dict[str, dict[str, float]]:
        """By node and resource, the most that any snapshot of the last while showed in use."""
        most: dict[str, dict[str, float]] = {}
        recent = [one for when, one in self.seen if when >= at - WINDOW_S] or [one for _, one in list(self.seen)[-1:]]
        for seen in recent:
            for node, used in seen.items():
                mine = most.setdefault(node, {})
                for name, amount in used.items():
                    mine[name] = max(mine.get(name, 0.0), amount)
        return most

    def surely_used(self, name: str) -> float:
        """How much of this resource is ours at the least, on nodes that are there."""
        there = [one for one in self.live.values() if not one.ahead]
        used = sum(one.takes.get(name, 0.0) for one in there if one.certain)
        for node, total in self.totals().items():
            seen = sum(one.takes.get(name, 0.0) for one in there if one.node == node)
            used += min(seen, total.get(name, 0.0))  # more is not there, but has ended, or is on another node
        return used

    def takes_kind(self, item: Item) -> bool:
        """May it go there at all?"""
        task = item.task
        allowed = task.allow_clusters is None or self.name in task.allow_clusters
        tagged = set(task.require_tags) <= set(self.metadata.tags)
        return allowed and tagged and self.name not in task.deny_clusters and item.only in (None, self.name)

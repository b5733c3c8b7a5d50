"""ClusterView: all that a placement decision may know of a cluster, at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ray_multicluster_scheduler.common.model import ClusterMetadata, Resources
from ray_multicluster_scheduler.common.model.resources import plus

LinkState = Literal["none", "up", "down"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that keeps a cluster from taking work.

    ``hopeless``: waiting will not mend it. ``being_asked``: nothing is known to be wrong, and an answer is on its way.
    """

    code: str
    sentence: str
    hopeless: bool = False
    at: float = 0.0
    being_asked: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node: what it has, what others use, what we reserved. ``free`` is None when others' use is unknown."""

    node_id: str
    total: Resources
    others: Resources | None
    ours: Resources
    free: Resources | None


@dataclass(frozen=True)
class ClusterView:
    """Frozen; made by the registry before a decision, at the time ``at``.

    ``trouble`` concerns all work there, ``link_trouble`` only tasks and actors. ``nodes`` is what the newest
    snapshot showed (empty without one); ``bygone_nodes`` are sizes that nodes had before and may have again.
    ``in_flight`` counts items with a place there, ``ready_actors`` those of them that are actors in service,
    ``ahead`` those that were sent there before there is a place for them.
    """

    metadata: ClusterMetadata
    at: float = 0.0
    nodes: tuple[NodeView, ...] = ()
    bygone_nodes: tuple[Resources, ...] = ()
    trouble: Trouble | None = None
    link_trouble: Trouble | None = None
    link: LinkState = "none"
    cordoned: bool = False
    in_flight: int = 0
    ready_actors: int = 0
    ahead: int = 0
    running_jobs: int = 0
    next_submission_at: float | None = None
    python_version: str | None = None
    ray_version: str | None = None
    observed: Resources | None = None
    snapshot_at: float | None = None

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def known(self) -> bool:
        """Was there ever a snapshot?"""
        return self.snapshot_at is not None

    @cached_property
    def total(self) -> dict[str, float]:
        """What its nodes have together."""
        return _sum(node.total for node in self.nodes)

    @cached_property
    def free(self) -> dict[str, float]:
        """What is free on nodes of which that is known."""
        return _sum(node.free for node in self.nodes if node.free is not None)

    @cached_property
    def use(self) -> dict[str, float]:
        """Share in use by anyone, 0..1, over the nodes of which it is known."""
        known = [node for node in self.nodes if node.free is not None]
        total = _sum(node.total for node in known)
        free = _sum(node.free for node in known if node.free is not None)
        return {name: 1.0 - min(1.0, free.get(name, 0.0) / amount) for name, amount in total.items() if amount > 0}


def _sum(parts: Iterable[Resources]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        total = plus(total, part)
    return total

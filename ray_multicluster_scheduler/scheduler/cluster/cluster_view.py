"""ClusterView: all that a placement decision may know of a cluster, at one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, overload

from ray_multicluster_scheduler.common.model import ClusterMetadata, Resources
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus

LinkState = Literal["none", "up", "down"]

NEW_NODE = "(new node)"
"""Where the ledger books what was sent to an autoscaling cluster before there is a node for it."""


V = TypeVar("V")


class lazy(Generic[V]):  # noqa: N801 - it is used as `property` is
    """A property that is worked out once. Unlike ``functools.cached_property`` it takes no lock: one thread is here."""

    def __init__(self, work_out: Callable[[Any], V]) -> None:
        self._work_out, self.__doc__ = work_out, work_out.__doc__
        self._name = work_out.__name__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy[V]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> V: ...

    def __get__(self, owner: object | None, kind: type) -> V | lazy[V]:
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._work_out(owner)
        return value


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
    """One node: what it has, what others use, what we reserved. ``free`` is None when others' use is unknown.

    ``over`` is by how much more is in use and reserved than there is: Ray started something elsewhere than expected.
    """

    node_id: str
    total: Resources
    others: Resources | None
    ours: Resources
    free: Resources | None
    over: Resources = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewNode:
    """The next node that an autoscaling cluster may add, and what of ours is on its way there already.

    ``size`` is ``max_node``; None: nobody knows how large it will be, and one item at a time is sent.
    """

    size: Resources | None
    ours: Resources

    def takes(self, need: Resources, *, whole: Resources | None = None) -> bool:
        """Is there room for it, so that never more than one node's worth is on its way? ``whole`` is what of it needs
        one node, if the rest may spread: a wide job goes alone."""
        if self.size is None:
            return not self.ours
        if fits(need, minus(self.size, self.ours)):
            return True
        if whole is None or self.ours or not fits(whole, self.size):
            return False
        return all(self.size.get(name) for name in need)

    def room(self, *, endless: bool) -> dict[str, float]:
        """What is left of it at the most; ``endless``: for what may need several such nodes."""
        if not self.ours and (self.size is None or endless):
            return Endless()
        return {} if self.size is None else minus(self.size, self.ours)


class Endless(dict[str, float]):
    """As much of everything as anybody may want."""

    def get(self, name: str, default: Any = None) -> Any:
        return float("inf")


@dataclass(frozen=True)
class ClusterView:
    """Frozen; made by the registry before a decision, at the time ``at``.

    ``trouble`` concerns all work there, ``link_trouble`` only tasks and actors, ``job_trouble`` only jobs. ``nodes`` is
    what the newest snapshot showed (empty without one); ``bygone_nodes`` are sizes that nodes had before and may have
    again, ``most_nodes`` those of all nodes when there were most of them.
    ``in_flight`` counts items with a place there, ``ready_actors`` those of them that are actors in service,
    ``ahead`` those that were sent there before there is a place for them. ``new_node`` is there if it can grow.
    ``kept_for`` is the item that room is kept for, which ``nodes`` show as taken; ``plain`` is the view without that.
    ``memo`` is for what policies have found out of this view and need not find out again; ``lasting`` for what depends
    on nothing that our own work or a snapshot changes there, so that it holds for the views to come as well.
    """

    metadata: ClusterMetadata
    at: float = 0.0
    nodes: tuple[NodeView, ...] = ()
    bygone_nodes: tuple[Resources, ...] = ()
    most_nodes: tuple[Resources, ...] = ()
    trouble: Trouble | None = None
    link_trouble: Trouble | None = None
    job_trouble: Trouble | None = None
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
    new_node: NewNode | None = None
    paused: str | None = None
    kept_for: str | None = None
    plain: ClusterView | None = field(default=None, compare=False, repr=False)
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    lasting: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def with_changes(self, **changes: Any) -> ClusterView:
        """The same with what our own work there changes, or what a snapshot shows. It is made for every item that comes
        or goes, hence by hand."""
        view = object.__new__(ClusterView)
        fields = view.__dict__
        fields.update(self.__dict__)
        fields.pop("free", None)
        fields.pop("most_free", None)
        fields.pop("use", None)
        if "snapshot_at" in changes:
            fields.pop("total", None)
        fields.update(changes)
        fields["memo"] = {}
        return view

    @lazy
    def name(self) -> str:
        return self.metadata.name

    @property
    def known(self) -> bool:
        """Was there ever a snapshot?"""
        return self.snapshot_at is not None

    @lazy
    def total(self) -> dict[str, float]:
        """What its nodes have together."""
        return _sum([node.total for node in self.nodes])

    @lazy
    def free(self) -> dict[str, float]:
        """What is free on nodes of which that is known."""
        return _sum([node.free for node in self.nodes if node.free is not None])

    @lazy
    def most_free(self) -> dict[str, float]:
        """The most that is free on any one node, resource by resource."""
        if len(self.nodes) == 1:
            return self.free
        most: dict[str, float] = {}
        for node in self.nodes:
            for name, amount in (node.free or {}).items():
                if amount > most.get(name, 0.0):
                    most[name] = amount
        return most

    def rooms(self, kind: str) -> list[dict[str, float]]:
        """What an item of this kind finds at the very most, place by place: a coarse sieve before the true filters."""
        spreads = kind in ("job", "gang")
        rooms = [self.free if spreads else self.most_free]
        if self.new_node is not None:
            room = self.new_node.room(endless=spreads)
            if kind == "job" and not isinstance(room, Endless):
                room = plus(room, self.free)  # where its entrypoint may go
            rooms.append(room)
        return rooms

    @lazy
    def use(self) -> dict[str, float]:
        """Share in use by anyone, 0..1, over the nodes of which it is known."""
        total, free, over, use = self.total, self.free, self._over, {}
        for node in self.nodes:
            if node.free is None:
                total = _sum([node.total for node in self.nodes if node.free is not None])
                break
        for name, amount in total.items():
            if amount > 0:
                left = (free.get(name, 0.0) - over.get(name, 0.0)) / amount
                use[name] = min(1.0, 1.0 - left) if left < 1.0 else 0.0
        return use

    @property
    def _over(self) -> dict[str, float]:
        return _sum([node.over for node in self.nodes if node.over])


def _sum(parts: Sequence[Resources]) -> dict[str, float]:
    total: dict[str, float] = dict(parts[0]) if parts else {}
    for part in parts[1:]:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total

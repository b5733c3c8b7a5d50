"""ClusterView: the immutable state of one cluster that a placement decision reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, overload

from ray_multicluster_scheduler.common.model import ClusterMetadata, Resources
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus, total_of

LinkState = Literal["none", "up", "down"]

NEW_NODE = "(new node)"
"""Pseudo node for bookings on an autoscaling cluster before a real node exists."""


V = TypeVar("V")


class lazy_property(Generic[V]):  # noqa: N801 - it is used as `property` is
    """A property that is computed once. Unlike ``functools.cached_property`` it takes no lock: only one thread uses
    it."""

    def __init__(self, compute: Callable[[Any], V]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__
        self._name = compute.__name__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy_property[V]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> V: ...

    def __get__(self, owner: object | None, kind: type) -> V | lazy_property[V]:
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._compute(owner)
        return value


@dataclass(frozen=True, slots=True)
class ClusterProblem:
    """Something that keeps a cluster from accepting work.

    ``permanent``: waiting does not help. ``being_asked``: no failure is known, and an answer is on its way.
    """

    code: str
    sentence: str
    permanent: bool = False
    at: float = 0.0
    being_asked: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node: its total, what others use (``external``), what we reserved. ``free`` is None if external is unknown.

    ``overcommitted`` is the amount by which use and reservations exceed the total: Ray started something on another
    node than expected.
    """

    node_id: str
    total: Resources
    external: Resources | None
    reserved: Resources
    free: Resources | None
    overcommitted: Resources = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewNode:
    """The next node that an autoscaling cluster may add, and what of ours is already waiting for it.

    ``size`` is ``max_node``; None if the size is unknown, and then one item at a time is sent.
    """

    size: Resources | None
    reserved: Resources

    def fits(self, need: Resources, *, whole: Resources | None = None) -> bool:
        """Is there capacity for it, so that never more than one node's worth waits? ``whole`` is the part that needs
        one node, if the rest may spread: a wide job goes alone."""
        if self.size is None:
            return not self.reserved
        if fits(need, minus(self.size, self.reserved)):
            return True
        if whole is None or self.reserved or not fits(whole, self.size):
            return False
        return all(self.size.get(name) for name in need)

    def max_free(self, *, endless: bool) -> dict[str, float]:
        """The most that is free on it; ``endless``: for items that may need several such nodes."""
        if not self.reserved and (self.size is None or endless):
            return Unlimited()
        return {} if self.size is None else minus(self.size, self.reserved)


class Unlimited(dict[str, float]):
    """An unlimited amount of every resource."""

    def get(self, name: str, default: Any = None) -> Any:
        return float("inf")


@dataclass(frozen=True)
class ClusterView:
    """Immutable state of one cluster at the time ``at``, as filters, ranks and scores read it.

    ``problem`` blocks all work there, ``link_problem`` only tasks and actors, ``job_problem`` only jobs. ``nodes`` come
    from the newest snapshot (empty without one). ``past_node_sizes`` are the largest sizes that nodes ever had;
    ``largest_node_set`` holds the node sizes at the time when there were most nodes.
    ``in_flight`` counts items with a slot there, ``ready_actors`` those of them that are actors in service,
    ``undeclared`` those that hold no resources, ``prefetched`` items that were sent there before a slot is free.
    ``new_node`` is set if the cluster autoscales.
    ``reserved_for`` is the wide item that capacity is reserved for; ``nodes`` show that capacity as taken, and
    ``without_reservation`` is the view without the reservation.
    ``cache`` holds results of policies for this view; ``stable_cache`` holds results that neither our own work nor a
    snapshot can change, so later views share it.
    """

    metadata: ClusterMetadata
    at: float = 0.0
    nodes: tuple[NodeView, ...] = ()
    past_node_sizes: tuple[Resources, ...] = ()
    largest_node_set: tuple[Resources, ...] = ()
    problem: ClusterProblem | None = None
    link_problem: ClusterProblem | None = None
    job_problem: ClusterProblem | None = None
    link: LinkState = "none"
    cordoned: bool = False
    cordon_reason: str = ""
    in_flight: int = 0
    ready_actors: int = 0
    prefetched: int = 0
    running_jobs: int = 0
    undeclared: int = 0
    next_submission_at: float | None = None
    python_version: str | None = None
    ray_version: str | None = None
    observed: Resources | None = None
    snapshot_at: float | None = None
    new_node: NewNode | None = None
    paused: str | None = None
    reserved_for: str | None = None
    without_reservation: ClusterView | None = field(default=None, compare=False, repr=False)
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    stable_cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def with_changes(self, **changes: Any) -> ClusterView:
        """A copy with changed fields. It is made for every item that comes or goes, so it bypasses the constructor."""
        view = object.__new__(ClusterView)
        fields = view.__dict__
        fields.update(self.__dict__)
        fields.pop("free", None)
        fields.pop("most_free", None)
        fields.pop("use", None)
        if "snapshot_at" in changes:
            fields.pop("total", None)
        fields.update(changes)
        fields["cache"] = {}
        return view

    @lazy_property
    def name(self) -> str:
        return self.metadata.name

    @property
    def has_snapshot(self) -> bool:
        """Was there ever a snapshot?"""
        return self.snapshot_at is not None

    @lazy_property
    def total(self) -> dict[str, float]:
        """The total of all nodes."""
        return total_of([node.total for node in self.nodes])

    @lazy_property
    def free(self) -> dict[str, float]:
        """Free resources on the nodes with known external use."""
        return total_of([node.free for node in self.nodes if node.free is not None])

    @lazy_property
    def most_free(self) -> dict[str, float]:
        """The most that is free on any one node, by resource."""
        if len(self.nodes) == 1:
            return self.free
        most: dict[str, float] = {}
        for node in self.nodes:
            for name, amount in (node.free or {}).items():
                if amount > most.get(name, 0.0):
                    most[name] = amount
        return most

    def max_free(self, kind: str) -> list[dict[str, float]]:
        """The most that an item of this kind can find, one entry per alternative: a coarse check before the filters."""
        spreads = kind in ("job", "gang")
        rooms = [self.free if spreads else self.most_free]
        if self.new_node is not None:
            room = self.new_node.max_free(endless=spreads)
            if kind == "job" and not isinstance(room, Unlimited):
                room = plus(room, self.free)  # where its entrypoint may go
            rooms.append(room)
        return rooms

    @lazy_property
    def use(self) -> dict[str, float]:
        """Share in use by anyone, 0..1, over the nodes with known external use."""
        total, free, over, use = self.total, self.free, self._overcommitted, {}
        for node in self.nodes:
            if node.free is None:
                total = total_of([node.total for node in self.nodes if node.free is not None])
                break
        for name, amount in total.items():
            if amount > 0:
                left = (free.get(name, 0.0) - over.get(name, 0.0)) / amount
                use[name] = min(1.0, 1.0 - left) if left < 1.0 else 0.0
        return use

    @property
    def _overcommitted(self) -> dict[str, float]:
        return total_of([node.overcommitted for node in self.nodes if node.overcommitted])

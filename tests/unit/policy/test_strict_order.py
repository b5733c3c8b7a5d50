"""Preferred, then tags, then load, then whose turn it is among the near-equal: nothing later ever outweighs anything
earlier."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose

from hypothesis import assume, example, given
from hypothesis import strategies as st

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from tests.unit.lifecycle.driver import task
from tests.unit.policy.views import node, view

GIB = 1024.0**3


@dataclass(frozen=True)
class Row:
    """One cluster of a random fleet."""

    tags: tuple[str, ...]
    total: int
    used: int
    memory: int
    weight: float
    prefer: bool

    def view(self, name: str) -> ClusterView:
        total = {"CPU": float(self.total), "memory": 64 * GIB}
        free = {"CPU": float(self.total - self.used), "memory": self.memory * GIB}
        return view(name, node(total, free), tags=self.tags, weight=self.weight, prefer=self.prefer)

    def load(self) -> float:
        """The formula of the documentation, written out once more."""
        free = self.total - self.used
        room = free * self.weight + 0.1 * self.memory * self.weight
        return room * (1.2 if self.prefer else 1.0) * (free / self.total)


def naive_choice(rows: list[Row], preferred: int | None, wanted: tuple[str, ...], turns: list[int]) -> int:
    """Strike out all but the best, one criterion after the other; among equals, who was last chosen longest ago."""
    left = list(range(len(rows)))
    if preferred is not None and preferred in left:
        left = [preferred]
    most = max(len(set(rows[index].tags) & set(wanted)) for index in left)
    left = [index for index in left if len(set(rows[index].tags) & set(wanted)) == most]
    best = max(rows[index].load() for index in left)
    assume(not any(isclose(rows[index].load(), best * 0.98, rel_tol=1e-6) for index in left if best))
    left = [index for index in left if rows[index].load() >= best * 0.98]
    for index in turns:
        if index in left and len(left) > 1:
            left.remove(index)
    return left[0]


rows = st.builds(
    Row,
    tags=st.sampled_from([(), ("x",), ("y",), ("x", "y"), ("z",)]),
    total=st.sampled_from([8, 16, 64]),
    used=st.integers(0, 7),
    memory=st.integers(0, 20),
    weight=st.sampled_from([1.0, 1.2, 2.0]),
    prefer=st.booleans(),
)
twins = st.lists(rows, min_size=1, max_size=3).flatmap(
    lambda few: st.lists(st.sampled_from(few), min_size=1, max_size=7)
)
IDLE = Row((), 64, 0, 20, 2.0, True)
BUSY = Row(("x", "y"), 8, 7, 0, 1.0, False)


@example([IDLE, BUSY], None, ("x",), 2)
@example([IDLE, BUSY], 1, (), 2)
@example([IDLE, IDLE, IDLE], None, (), 6)
@given(
    st.one_of(st.lists(rows, min_size=1, max_size=7), twins),
    st.none() | st.integers(0, 8),
    st.sampled_from([(), ("x",), ("x", "y"), ("nowhere",)]),
    st.integers(1, 8),
)
def test_the_order_is_strict(fleet: list[Row], preferred: int | None, wanted: tuple[str, ...], items: int) -> None:
    brain = PolicyEngine(Settings(resource_threshold=1))
    views = [row.view(f"c{index}") for index, row in enumerate(fleet)]
    name = None if preferred is None else f"c{preferred}"
    turns: list[int] = []
    """Those that were chosen, the latest first."""
    for number in range(items):
        decision = brain.schedule(task(f"t{number}", tags=wanted, preferred_cluster=name), views, 0.0)
        expected = naive_choice(fleet, preferred, wanted, turns)
        assert decision.cluster == f"c{expected}"
        brain.record_placement(decision.cluster)
        turns = [expected, *(index for index in turns if index != expected)]


def test_equals_take_turns_and_the_better_never_wait_for_theirs() -> None:
    brain = PolicyEngine(Settings(resource_threshold=1))
    views = [BUSY.view("busy"), IDLE.view("one"), IDLE.view("two")]
    order = []
    for _ in range(4):
        chosen = brain.schedule(task("t"), views, 0.0).cluster
        assert chosen is not None
        order.append(chosen)
        brain.record_placement(chosen)
    assert order == ["one", "two", "one", "two"]

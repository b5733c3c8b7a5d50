"""How many calls go into a chunk: by observed speed, with an even end."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.app.client_api.executor.chunk_size import (
    GROWTH,
    MAX_BYTES,
    MAX_ITEMS,
    SLOWEST_S,
    TARGET_S,
    BalancedSize,
    FixedSize,
)


def warm(**seconds: float) -> BalancedSize:
    """One that knows these clusters' seconds per item from large chunks."""
    sizer = BalancedSize()
    for cluster, each in seconds.items():
        sizer.observe(cluster, 5000, 5000 * each)
    return sizer


def test_a_fixed_size_stays() -> None:
    sizer = FixedSize(7)
    sizer.observe("a", 7, 100.0)
    assert sizer.next_size(cluster="a", remaining=3, slots=99) == 7


def test_the_first_chunks_are_single_calls() -> None:
    assert BalancedSize().next_size(cluster=None, remaining=100_000, slots=1) == 1


def test_growth_is_bounded_by_what_came_back() -> None:
    sizer = BalancedSize()
    sizer.observe("a", 1, 1e-6)
    assert sizer.next_size(cluster="a", remaining=None, slots=4) == GROWTH
    sizer.observe("a", GROWTH, GROWTH * 1e-6)
    assert sizer.next_size(cluster="a", remaining=None, slots=4) == GROWTH**2


def test_a_chunk_takes_about_the_target() -> None:
    assert warm(a=0.001).next_size(cluster="a", remaining=None, slots=4) == pytest.approx(TARGET_S / 0.001, rel=0.01)


def test_long_calls_go_singly() -> None:
    assert warm(a=5.0).next_size(cluster="a", remaining=1000, slots=4) == 1


def test_each_cluster_gets_what_it_can_do() -> None:
    sizer = warm(fast=0.001, slow=0.002)
    fast = sizer.next_size(cluster="fast", remaining=None, slots=4)
    slow = sizer.next_size(cluster="slow", remaining=None, slots=4)
    assert fast == pytest.approx(2 * slow, rel=0.02)


def test_a_chunk_for_a_fast_cluster_may_land_on_a_slow_one() -> None:
    sizer = warm(fast=0.0001, slow=0.01)
    assert sizer.next_size(cluster="fast", remaining=None, slots=4) * 0.01 <= SLOWEST_S


@pytest.mark.parametrize("cluster", [None, "new"])
def test_an_unknown_cluster_is_taken_for_slow(cluster: str | None) -> None:
    sizer = warm(fast=0.001, slow=0.01)
    assert sizer.next_size(cluster=cluster, remaining=None, slots=4) == pytest.approx(TARGET_S / 0.01, rel=0.05)


def test_a_cluster_that_becomes_slow_is_noticed() -> None:
    sizer = warm(a=0.001)
    before = sizer.next_size(cluster="a", remaining=None, slots=4)
    for _ in range(10):
        size = sizer.next_size(cluster="a", remaining=None, slots=4)
        sizer.observe("a", size, size * 0.02)
    assert sizer.next_size(cluster="a", remaining=None, slots=4) < before / 10


def test_tiny_calls_are_bounded_in_number() -> None:
    assert warm(a=1e-7).next_size(cluster="a", remaining=None, slots=1) == MAX_ITEMS


def test_large_data_is_bounded_in_bytes() -> None:
    sizer = BalancedSize()
    sizer.observe("a", 1000, 0.001, 1000 * 1024 * 1024)
    assert sizer.next_size(cluster="a", remaining=None, slots=1) == MAX_BYTES // (1024 * 1024)


def test_chunks_shrink_towards_the_end() -> None:
    sizer = warm(a=0.001)
    sizes = [sizer.next_size(cluster="a", remaining=left, slots=4) for left in (100_000, 1600, 800, 400, 80)]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3] > 0
    assert sizes[1:3] == [200, 100]
    assert sizes[4] * 0.001 >= 0.029, "a chunk that costs more to send than to run is of no use"


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10_000), st.floats(0, 1e4), st.integers(0, 10**12))),
    st.sampled_from([None, "a", "z"]),
    st.none() | st.integers(0, 10**9),
    st.integers(0, 10_000),
)
def test_it_is_a_size_whatever_was_seen(
    seen: list[tuple[str, int, float, int]], cluster: str | None, remaining: int | None, slots: int
) -> None:
    sizer = BalancedSize()
    for where, items, seconds, size in seen:
        sizer.observe(where, items, seconds, size)
    assert 1 <= sizer.next_size(cluster=cluster, remaining=remaining, slots=slots) <= MAX_ITEMS


@dataclass
class Run:
    """A map in virtual time: a free place takes the chunk that waits longest, as a scheduler gives it."""

    clusters: dict[str, tuple[int, float]]  # places, seconds per item
    total: int
    known: bool = True
    reserve: int = 4
    overhead_s: float = 0.005
    idle_at: dict[str, float] = field(default_factory=dict)
    chunks: int = 0

    def finish(self) -> Run:
        sizer, left, now, freed = BalancedSize(), self.total, 0.0, None
        free = list(itertools.chain.from_iterable([name] * places for name, (places, _) in self.clusters.items()))
        waiting: list[int] = []
        running: list[tuple[float, int, str, int]] = []
        while left or waiting or running:
            while left and len(waiting) < self.reserve:
                remaining = left if self.known else None
                slots = len(running) + len(waiting)
                size = min(left, sizer.next_size(cluster=freed, remaining=remaining, slots=slots))
                freed = None
                waiting.append(size)
                left -= size
            while waiting and free:
                name, size = free.pop(), waiting.pop(0)
                self.chunks += 1
                took = self.overhead_s + size * self.clusters[name][1]
                heapq.heappush(running, (now + took, self.chunks, name, size))
            if running and not (left and free):
                now, _, freed, size = heapq.heappop(running)
                sizer.observe(freed, size, size * self.clusters[freed][1])
                self.idle_at[freed] = now
                free.append(freed)
        return self

    @property
    def took(self) -> float:
        return max(self.idle_at.values())

    @property
    def ideal(self) -> float:
        return self.total / sum(places / seconds for places, seconds in self.clusters.values())


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("clusters", "total"),
    [
        ({"fast": (2, 0.001), "slow": (2, 0.01)}, 50_000),
        ({"fast": (2, 0.0005), "slow": (2, 0.0015)}, 100_000),
        ({"even": (4, 0.002), "other": (4, 0.002)}, 50_000),
        ({"large": (16, 0.002), "small": (1, 0.0002)}, 200_000),
    ],
)
def test_clusters_finish_about_together(clusters: dict[str, tuple[int, float]], total: int, known: bool) -> None:
    run = Run(clusters, total, known=known).finish()
    assert run.took <= run.ideal * 1.15 + 0.3
    # The last chunk that a cluster got took at most what a chunk may take, so nobody waits for longer than that.
    assert max(run.idle_at.values()) - min(run.idle_at.values()) <= (0.5 if known else SLOWEST_S + 0.2)


def test_few_chunks_for_many_tiny_calls() -> None:
    run = Run({"a": (2, 2e-6), "b": (2, 2e-6)}, 100_000).finish()
    assert run.chunks <= 50


def test_long_calls_are_spread_one_by_one() -> None:
    run = Run({"a": (2, 2.0), "b": (2, 2.0)}, 40).finish()
    assert run.chunks == 40
    assert run.took == pytest.approx(run.ideal, rel=0.05)

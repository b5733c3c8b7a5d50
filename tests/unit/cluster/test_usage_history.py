"""UsageHistory: coarse, bounded, and never too low."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.scheduler.cluster.usage_history import BUCKET_S, KEEP_S, UsageHistory


def test_no_own_use_before_the_first_reservation() -> None:
    assert UsageHistory().peak(0, 100) == {}


def test_the_peak_within_a_window_and_what_lasted_into_it() -> None:
    history = UsageHistory()
    history.record(10, {"CPU": 2})
    history.record(20, {"CPU": 5})
    history.record(21, {"CPU": 1})
    assert history.peak(12, 15) == {"CPU": 2}
    assert history.peak(15, 20.5) == {"CPU": 5}
    assert history.peak(22, 30) == {"CPU": 1}
    assert history.peak(5, 9) == {}


def test_resources_peak_on_their_own() -> None:
    history = UsageHistory()
    history.record(10, {"CPU": 4})
    history.record(11, {"GPU": 1})
    assert history.peak(9, 12) == {"CPU": 4, "GPU": 1}


def test_what_was_ours_all_along_is_added_from_then_on() -> None:
    history = UsageHistory()
    history.record(10, {"CPU": 2})
    history.record(20, {"CPU": 1})
    history.backdate(20, {"CPU": 4})
    history.backdate(15, {"GPU": 1})
    assert history.peak(11, 14) == {"CPU": 2}
    assert history.peak(16, 19) == {"CPU": 2, "GPU": 1}
    assert history.peak(21, 30) == {"CPU": 5, "GPU": 1}


def test_memory_is_bounded_and_the_horizon_is_kept() -> None:
    history = UsageHistory()
    for step in range(100_000):
        history.record(step / 100, {"CPU": step % 7})
    assert len(history._buckets) <= KEEP_S / BUCKET_S + 3
    quiet = UsageHistory()
    quiet.record(0, {"CPU": 3})
    quiet.record(1000, {"CPU": 4})
    assert quiet.peak(980, 990) == {"CPU": 3}


random_usage = given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(0, 9)), min_size=1, max_size=30),
    st.floats(0, 20),
    st.floats(0, 20),
)


def recorded(steps: list[tuple[float, int]], begin: float, end: float) -> tuple[UsageHistory, list[int], list[int]]:
    """A history of these steps; the CPUs of those until ``begin``, and of those from ``begin`` to ``end``."""
    steps = sorted(steps, key=lambda step: step[0])
    history = UsageHistory()
    for at, cpus in steps:
        history.record(at, {"CPU": cpus})
    before = [cpus for at, cpus in steps if at <= begin]
    return history, before, [cpus for at, cpus in steps if begin <= at <= end]


@random_usage
def test_never_below_the_truth(steps: list[tuple[float, int]], one: float, other: float) -> None:
    begin, end = sorted((one, other))
    history, before, during = recorded(steps, begin, end)
    truth = max(during + before[-1:], default=0)
    assert history.peak(begin, end).get("CPU", 0) >= truth


def test_the_trough_within_a_window() -> None:
    history = UsageHistory()
    assert history.trough(0, 100) == {}
    history.record(10, {"CPU": 4, "GPU": 1})
    history.record(20, {"CPU": 2})
    history.record(21, {"CPU": 6})
    assert history.trough(11, 15) == {"CPU": 4, "GPU": 1}
    assert history.trough(11, 20.5) == {"CPU": 2}
    assert history.trough(22, 30) == {"CPU": 6}
    assert history.trough(5, 15) == {}  # before that, nothing was


def test_a_trough_counts_what_is_backdated_only_from_the_next_moment_on() -> None:
    history = UsageHistory()
    history.record(10, {"CPU": 1})
    history.record(20, {"CPU": 1})
    history.backdate(15.05, {"CPU": 4})
    assert history.trough(15, 18) == {"CPU": 1}
    assert history.trough(16, 18) == {"CPU": 5}
    assert history.trough(21, 22) == {"CPU": 5}


@random_usage
def test_a_trough_is_never_above_the_truth(steps: list[tuple[float, int]], one: float, other: float) -> None:
    begin, end = sorted((one, other))
    history, before, during = recorded(steps, begin, end)
    truth = min(during + (before[-1:] or [0]))
    assert history.trough(begin, end).get("CPU", 0) <= truth


def test_a_small_part_that_ends_leaves_nothing() -> None:
    history = UsageHistory()
    history.record(10, {"CPU": 0.5})
    history.record(20, {})
    assert history.trough(11, 15) == {"CPU": 0.5}
    assert history.trough(11, 21) == {}
    assert history.peak(11, 21) == {"CPU": 0.5}


def test_what_is_backdated_to_before_the_first_change() -> None:
    history = UsageHistory()
    history.record(20, {"CPU": 1})
    history.backdate(10, {"CPU": 2})
    assert history.peak(11, 15) == {"CPU": 2}
    assert history.peak(21, 22) == {"CPU": 3}
    assert history.peak(5, 9) == {}

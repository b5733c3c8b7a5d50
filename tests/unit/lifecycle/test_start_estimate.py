"""When a waiting item may start: plain cases of the arithmetic, and what the machine makes of them."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.scheduler.lifecycle.placement import run_times, start_estimate
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import CompletionRate, RunTime, RunTimes
from ray_multicluster_scheduler.scheduler.lifecycle.placement.start_estimate import (
    ClusterCapacity,
    NodeCapacity,
    RunningItem,
    StartEstimate,
    duration_text,
    estimate_from_capacity,
    remaining_time,
)
from tests.unit.lifecycle.driver import actor, job, task

CPU = {"CPU": 1.0}


def ends_in(*seconds: float, cpus: float = 1) -> tuple[RunningItem, ...]:
    return tuple(RunningItem({"CPU": float(cpus)}, RunTime(at / 2, at, at * 2)) for at in seconds)


def one_cluster(position: int, need: Resources, own: RunTime | None, nodes: list[NodeCapacity]) -> StartEstimate:
    """On one cluster that may be used to the last."""
    return estimate_from_capacity(position, need, own, [ClusterCapacity(nodes)])


class TestTheArithmetic:
    def test_the_next_one_starts_when_the_first_one_ends(self) -> None:
        assert one_cluster(1, CPU, None, [NodeCapacity({}, ends_in(30, 12))]) == StartEstimate(6, 12, 24)

    def test_each_end_is_for_one_of_those_that_wait(self) -> None:
        nodes = [NodeCapacity({}, ends_in(30)), NodeCapacity({}, ends_in(12, 40))]
        assert [one_cluster(place, CPU, None, nodes).likely for place in (1, 2, 3)] == [12, 30, 40]

    def test_a_wide_one_waits_until_enough_has_ended_on_one_node(self) -> None:
        nodes = [NodeCapacity({}, ends_in(10, 20, 30)), NodeCapacity({"CPU": 1.0}, ends_in(50))]
        assert one_cluster(1, {"CPU": 2.0}, None, nodes).likely == 20
        assert one_cluster(2, {"CPU": 2.0}, None, nodes).likely == 50

    def test_room_that_is_there_counts_for_those_ahead(self) -> None:
        assert one_cluster(1, CPU, None, [NodeCapacity({"CPU": 1.0}, ends_in(30))]).likely == 0
        assert one_cluster(2, CPU, None, [NodeCapacity({"CPU": 1.0}, ends_in(30))]).likely == 30

    def test_those_ahead_run_as_long_as_it_does(self) -> None:
        nodes = [NodeCapacity({}, ends_in(10, 20))]
        own = RunTime(60, 100, 200)
        assert one_cluster(3, CPU, own, nodes) == StartEstimate(65, 110, 220)
        assert one_cluster(6, CPU, own, nodes).likely == 20 + 2 * 100

    def test_nothing_more_is_put_where_too_much_is_in_use(self) -> None:
        above = ClusterCapacity(
            [NodeCapacity({"CPU": 2.0}, ends_in(10, 20)), NodeCapacity({"CPU": 2.0}, ends_in(30))], {"CPU": -0.5}
        )
        starts = [estimate_from_capacity(at, CPU, RunTime(50, 100, 200), [above]).likely for at in range(1, 5)]
        assert starts == [10, 20, 30, 10 + 100], "one for each end, though four are free"

    def test_what_is_in_use_on_all_nodes_counts(self) -> None:
        above = ClusterCapacity([NodeCapacity({"CPU": 4.0}), NodeCapacity({}, ends_in(10, 20, cpus=2))], {"CPU": -3.0})
        starts = [estimate_from_capacity(at, {"CPU": 2.0}, None, [above]).likely for at in (1, 2)]
        assert starts == [20, None]

    def test_where_something_has_to_end_first_nothing_is_free_now(self) -> None:
        nodes = [NodeCapacity({"CPU": 1.0}, ends_in(10))]
        assert estimate_from_capacity(1, CPU, None, [ClusterCapacity(nodes, full=True)]).likely == 10
        assert estimate_from_capacity(2, CPU, None, [ClusterCapacity(nodes, full=True)]).likely == 10
        both = [ClusterCapacity(nodes, full=True), ClusterCapacity(nodes)]
        assert [estimate_from_capacity(at, CPU, None, both).likely for at in (1, 2, 3, 4)] == [
            0,
            10,
            10,
            10,
        ]

    def test_reason_why_freed_capacity_does_not_help(self) -> None:
        nodes = [NodeCapacity({}, ends_in(10))]
        above = [ClusterCapacity(nodes, {"CPU": -5.0})]
        output = estimate_from_capacity(1, CPU, None, above).why
        assert output == "the attempts of known run time do not bring use down to the threshold"
        assert estimate_from_capacity(7, CPU, None, above).why == output, "the items ahead of it"
        output = estimate_from_capacity(1, {"CPU": 2.0}, None, above).why
        assert output == "the attempts of known run time do not free enough for it", "not without a threshold either"

    def test_it_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start_estimate, "MAX_SLOTS_PER_NODE", 3)
        nodes = [NodeCapacity({"CPU": 100.0}), NodeCapacity({"CPU": 100.0}, ends_in(50))]
        own = RunTime(10, 10, 10)
        assert [one_cluster(at, CPU, own, nodes).likely for at in (6, 7)] == [0, 10], "three for each node"

    def test_the_reason_of_an_unknown_estimate_is_given(self) -> None:
        def unknown(*case: object) -> str:
            reported = one_cluster(*case)  # type: ignore[arg-type]  # cases of several types
            assert (reported.low, reported.likely, reported.high) == (None, None, None)
            return reported.text

        assert unknown(1, CPU, None, []) == "unknown: the run time of what it waits for is unknown"
        assert "is unknown" in unknown(1, CPU, None, [NodeCapacity({}, (RunningItem(CPU, None),))])
        assert unknown(2, CPU, None, [NodeCapacity({}, ends_in(10))]).startswith("unknown: 1 are ahead of it")
        assert "do not free enough" in unknown(1, {"CPU": 4.0}, None, [NodeCapacity({}, ends_in(10))])
        assert "no resources" in unknown(1, {}, None, [NodeCapacity({}, ends_in(10))])

    def test_an_item_with_unknown_end_is_left_out(self) -> None:
        nodes = [NodeCapacity({}, (RunningItem(CPU, None), *ends_in(10)))]
        assert one_cluster(1, CPU, None, nodes).likely == 10
        assert one_cluster(2, {"CPU": 2.0}, None, nodes).likely is None

    def test_remaining_run_time(self) -> None:
        seen = RunTime(10, 20, 40)
        assert remaining_time(None, 5) is None
        assert remaining_time(seen, 0) == seen
        assert remaining_time(seen, 15) == RunTime(0, 5, 25)
        assert remaining_time(seen, 20) == RunTime(0, 10, 20), "halfway to the longest"
        assert remaining_time(seen, 25) == RunTime(0, 7.5, 15)
        assert remaining_time(seen, 50) == RunTime(0, 25, 50), "longer than any before: it may take as long again"
        assert remaining_time(seen, 600) == RunTime(0, 300, 600), "and never about 0 s for ever"

    @pytest.mark.parametrize(
        ("reported", "text"),
        [
            (StartEstimate(5, 12, 30), "in about 12 s (between 5 and 30 s)"),
            (StartEstimate(0.5, 90, 180), "in about 90 s (between 0.5 s and 3 min)"),
            (StartEstimate(0, 0, 0), "at once"),
            (StartEstimate(40), "not before 40 s from now"),
            (StartEstimate(), "unknown"),
            (StartEstimate(why="it is held"), "unknown: it is held"),
        ],
    )
    def test_in_words(self, reported: StartEstimate, text: str) -> None:
        assert reported.text == text
        assert reported.to_dict() == {
            "text": text,
            "earliest_s": reported.low,
            "likely_s": reported.likely,
            "latest_s": reported.high,
        }

    def test_units(self) -> None:
        assert [duration_text(one) for one in (0.25, 9.7, 75, 3599, 3600 * 30)] == [
            "0.2 s",
            "9.7 s",
            "75 s",
            "60 min",
            "30 h",
        ]


class TestWhatWasSeen:
    def test_of_the_same_code_or_else_of_the_same_size(self) -> None:
        times = RunTimes()
        known, like_it, wide = task("t", function_digest="f"), task("u", function_digest="g"), task("v", cpus=2)
        assert times.observed_range(known) is None
        times.observe("f", 1.0)
        times.observe("f", 3.0)
        times.item_ended(known, 8.0)
        assert times.observed_range(known) == RunTime(pytest.approx(1 * 2 / 3), 2.0, 3 * 3 / 2), "two are not many"
        assert times.observed_range(like_it) == RunTime(8 / 2, 8.0, 8 * 2), "and one is less"
        assert times.observed_range(wide) is None

    def test_jobs_by_their_entrypoint(self) -> None:
        times = RunTimes()
        times.item_ended(job("j"), 60.0)
        times.item_ended(job("k", cpus=4), 100.0)
        assert times.observed_range(job("l", cpus=8)) == RunTime(pytest.approx(40.0), 80.0, 150.0)

    def test_actors_run_for_as_long_as_they_are_needed(self) -> None:
        times = RunTimes()
        times.item_ended(actor("x"), 60.0)
        assert times.observed_range(actor("x")) is None

    def test_it_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run_times, "_KEPT", 2)
        times = RunTimes()
        for name in "fgh":
            times.observe(name, 1.0)
        assert times.observed_range(task("t", function_digest="f")) is None
        assert times.observed_range(task("t", function_digest="h")) is not None
        for took in range(100):
            times.observe("h", float(took))
        assert times.observed_range(task("t", function_digest="h")) == RunTime(
            pytest.approx(92 * 8 / 9), 95.5, 99 * 9 / 8
        )


def test_a_long_queue_of_tiny_items_is_not_faster_than_it_was_seen_to_be() -> None:
    guess = StartEstimate(0.0024, 0.0036, 0.0052)
    assert guess.limited_by_rate(None, 15_000) == guess
    paced = guess.limited_by_rate(300.0, 15_000)
    assert (paced.low, paced.likely, paced.high) == (25.0, 50.0, 100.0)
    assert StartEstimate(why="nobody knows").limited_by_rate(300.0, 15_000) == StartEstimate(why="nobody knows")


def test_the_completion_rate_is_known_once_enough_items_have_ended() -> None:
    pace = CompletionRate()
    for number in range(49):
        pace.ended(float(number))
    assert pace.per_s(50.0) is None
    pace.ended(49.0)
    assert pace.per_s(50.0) == 1.0
    assert pace.per_s(0.0) is None

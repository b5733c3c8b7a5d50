"""When a waiting item may start: plain cases of the arithmetic, and what the machine makes of them."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import Resources
from ray_multicluster_scheduler.scheduler.lifecycle.placement import forecast, run_times
from ray_multicluster_scheduler.scheduler.lifecycle.placement.forecast import (
    Busy,
    Forecast,
    Node,
    Room,
    left_of,
    span,
)
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import Pace, RunTime, RunTimes
from tests.unit.lifecycle.driver import actor, job, task

CPU = {"CPU": 1.0}


def ends_in(*seconds: float, cpus: float = 1) -> tuple[Busy, ...]:
    return tuple(Busy({"CPU": float(cpus)}, RunTime(at / 2, at, at * 2)) for at in seconds)


def until_there_is_room(position: int, need: Resources, own: RunTime | None, nodes: list[Node]) -> Forecast:
    """On one cluster that may be used to the last."""
    return forecast.until_there_is_room(position, need, own, [Room(nodes)])


class TestTheArithmetic:
    def test_the_next_one_starts_when_the_first_one_ends(self) -> None:
        assert until_there_is_room(1, CPU, None, [Node({}, ends_in(30, 12))]) == Forecast(6, 12, 24)

    def test_each_end_is_for_one_of_those_that_wait(self) -> None:
        nodes = [Node({}, ends_in(30)), Node({}, ends_in(12, 40))]
        assert [until_there_is_room(place, CPU, None, nodes).likely for place in (1, 2, 3)] == [12, 30, 40]

    def test_a_wide_one_waits_until_enough_has_ended_on_one_node(self) -> None:
        nodes = [Node({}, ends_in(10, 20, 30)), Node({"CPU": 1.0}, ends_in(50))]
        assert until_there_is_room(1, {"CPU": 2.0}, None, nodes).likely == 20
        assert until_there_is_room(2, {"CPU": 2.0}, None, nodes).likely == 50

    def test_room_that_is_there_counts_for_those_ahead(self) -> None:
        assert until_there_is_room(1, CPU, None, [Node({"CPU": 1.0}, ends_in(30))]).likely == 0
        assert until_there_is_room(2, CPU, None, [Node({"CPU": 1.0}, ends_in(30))]).likely == 30

    def test_those_ahead_run_as_long_as_it_does(self) -> None:
        nodes = [Node({}, ends_in(10, 20))]
        own = RunTime(60, 100, 200)
        assert until_there_is_room(3, CPU, own, nodes) == Forecast(65, 110, 220)
        assert until_there_is_room(6, CPU, own, nodes).likely == 20 + 2 * 100

    def test_nothing_more_is_put_where_too_much_is_in_use(self) -> None:
        above = Room([Node({"CPU": 2.0}, ends_in(10, 20)), Node({"CPU": 2.0}, ends_in(30))], {"CPU": -0.5})
        starts = [forecast.until_there_is_room(at, CPU, RunTime(50, 100, 200), [above]).likely for at in range(1, 5)]
        assert starts == [10, 20, 30, 10 + 100], "one for each end, though four are free"

    def test_what_is_in_use_on_all_nodes_counts(self) -> None:
        above = Room([Node({"CPU": 4.0}), Node({}, ends_in(10, 20, cpus=2))], {"CPU": -3.0})
        starts = [forecast.until_there_is_room(at, {"CPU": 2.0}, None, [above]).likely for at in (1, 2)]
        assert starts == [20, None]

    def test_where_something_has_to_end_first_nothing_is_free_now(self) -> None:
        nodes = [Node({"CPU": 1.0}, ends_in(10))]
        assert forecast.until_there_is_room(1, CPU, None, [Room(nodes, full=True)]).likely == 10
        assert forecast.until_there_is_room(2, CPU, None, [Room(nodes, full=True)]).likely == 10
        both = [Room(nodes, full=True), Room(nodes)]
        assert [forecast.until_there_is_room(at, CPU, None, both).likely for at in (1, 2, 3, 4)] == [0, 10, 10, 10]

    def test_why_what_ends_does_not_help(self) -> None:
        nodes = [Node({}, ends_in(10))]
        above = [Room(nodes, {"CPU": -5.0})]
        said = forecast.until_there_is_room(1, CPU, None, above).why
        assert said == "what is known to end does not bring use down to the threshold"
        assert forecast.until_there_is_room(7, CPU, None, above).why == said, "whoever is ahead of it"
        said = forecast.until_there_is_room(1, {"CPU": 2.0}, None, above).why
        assert said == "what is known to end does not leave enough room for it", "not without a threshold either"

    def test_it_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forecast, "MOST_OPENINGS", 3)
        nodes = [Node({"CPU": 100.0}), Node({"CPU": 100.0}, ends_in(50))]
        own = RunTime(10, 10, 10)
        assert [until_there_is_room(at, CPU, own, nodes).likely for at in (6, 7)] == [0, 10], "three for each node"

    def test_what_is_not_known_is_said(self) -> None:
        def unknown(*case: object) -> str:
            told = until_there_is_room(*case)  # type: ignore[arg-type]  # cases of several types
            assert (told.low, told.likely, told.high) == (None, None, None)
            return told.text

        assert unknown(1, CPU, None, []) == "unknown: nothing is known of how long runs what it waits for"
        assert "nothing is known" in unknown(1, CPU, None, [Node({}, (Busy(CPU, None),))])
        assert unknown(2, CPU, None, [Node({}, ends_in(10))]).startswith("unknown: 1 are ahead of it, and nothing")
        assert "does not leave enough room" in unknown(1, {"CPU": 4.0}, None, [Node({}, ends_in(10))])
        assert "asks for nothing" in unknown(1, {}, None, [Node({}, ends_in(10))])

    def test_one_whose_end_nobody_knows_is_left_out(self) -> None:
        nodes = [Node({}, (Busy(CPU, None), *ends_in(10)))]
        assert until_there_is_room(1, CPU, None, nodes).likely == 10
        assert until_there_is_room(2, {"CPU": 2.0}, None, nodes).likely is None

    def test_how_much_longer(self) -> None:
        seen = RunTime(10, 20, 40)
        assert left_of(None, 5) is None
        assert left_of(seen, 0) == seen
        assert left_of(seen, 15) == RunTime(0, 5, 25)
        assert left_of(seen, 20) == RunTime(0, 10, 20), "halfway to the longest"
        assert left_of(seen, 25) == RunTime(0, 7.5, 15)
        assert left_of(seen, 50) == RunTime(0, 25, 50), "longer than any before: it may take as long again"
        assert left_of(seen, 600) == RunTime(0, 300, 600), "and never about 0 s for ever"

    @pytest.mark.parametrize(
        ("told", "text"),
        [
            (Forecast(5, 12, 30), "in about 12 s (between 5 and 30 s)"),
            (Forecast(0.5, 90, 180), "in about 90 s (between 0.5 s and 3 min)"),
            (Forecast(0, 0, 0), "at once"),
            (Forecast(40), "not before 40 s from now"),
            (Forecast(), "unknown"),
            (Forecast(why="it is held"), "unknown: it is held"),
        ],
    )
    def test_in_words(self, told: Forecast, text: str) -> None:
        assert told.text == text
        assert told.to_dict() == {
            "text": text,
            "earliest_s": told.low,
            "likely_s": told.likely,
            "latest_s": told.high,
        }

    def test_units(self) -> None:
        assert [span(one) for one in (0.25, 9.7, 75, 3599, 3600 * 30)] == ["0.2 s", "9.7 s", "75 s", "60 min", "30 h"]


class TestWhatWasSeen:
    def test_of_the_same_code_or_else_of_the_same_size(self) -> None:
        times = RunTimes()
        known, like_it, wide = task("t", function_digest="f"), task("u", function_digest="g"), task("v", cpus=2)
        assert times.seen(known) is None
        times.observe("f", 1.0)
        times.observe("f", 3.0)
        times.ended(known, 8.0)
        assert times.seen(known) == RunTime(pytest.approx(1 * 2 / 3), 2.0, 3 * 3 / 2), "two are not many"
        assert times.seen(like_it) == RunTime(8 / 2, 8.0, 8 * 2), "and one is less"
        assert times.seen(wide) is None

    def test_jobs_by_their_entrypoint(self) -> None:
        times = RunTimes()
        times.ended(job("j"), 60.0)
        times.ended(job("k", cpus=4), 100.0)
        assert times.seen(job("l", cpus=8)) == RunTime(pytest.approx(40.0), 80.0, 150.0)

    def test_actors_run_for_as_long_as_they_are_needed(self) -> None:
        times = RunTimes()
        times.ended(actor("x"), 60.0)
        assert times.seen(actor("x")) is None

    def test_it_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run_times, "_KEPT", 2)
        times = RunTimes()
        for name in "fgh":
            times.observe(name, 1.0)
        assert times.seen(task("t", function_digest="f")) is None
        assert times.seen(task("t", function_digest="h")) is not None
        for took in range(100):
            times.observe("h", float(took))
        assert times.seen(task("t", function_digest="h")) == RunTime(pytest.approx(92 * 8 / 9), 95.5, 99 * 9 / 8)


def test_a_long_queue_of_tiny_items_is_not_faster_than_it_was_seen_to_be() -> None:
    guess = Forecast(0.0024, 0.0036, 0.0052)
    assert guess.not_faster_than(None, 15_000) == guess
    paced = guess.not_faster_than(300.0, 15_000)
    assert (paced.low, paced.likely, paced.high) == (25.0, 50.0, 100.0)
    assert Forecast(why="nobody knows").not_faster_than(300.0, 15_000) == Forecast(why="nobody knows")


def test_the_pace_is_told_once_enough_have_ended() -> None:
    pace = Pace()
    for number in range(49):
        pace.ended(float(number))
    assert pace.per_s(50.0) is None
    pace.ended(49.0)
    assert pace.per_s(50.0) == 1.0
    assert pace.per_s(0.0) is None

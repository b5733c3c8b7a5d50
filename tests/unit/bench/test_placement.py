"""bench.placement: a tiny run of the real thing, and verdicts that follow from its figures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bench._placement_harness import PlacementHarness
from bench._placement_loops import cold, steady
from bench._placement_report import report, table
from bench.placement import main
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import task


def loop(clusters: int, per_s: float, **values: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "clusters": clusters,
        "per_s": per_s,
        "queued": 1000,
        "bytes_per_item": 500.0,
        "cpu_share": 1.0,
        "handle": {"Submitted": {"mean_us": 10.0}},
        "handle_ms": {"p50": 0.1, "p99": 1.0, "max": 2.0},
        "checked": 10,
        "wrong": [],
    }
    return {**figures, **values}


def missed(document: dict[str, Any]) -> list[str]:
    return [one["promise"].partition(":")[0] for one in document["floors"] if not one["passed"]]


def test_cold_places_one_new_shape_after_another_and_all_decisions_are_the_naive_ones() -> None:
    figures = cold(3, seconds=0.1, samples=5)
    assert figures["wrong"] == []
    assert figures["checked"] >= 5
    assert figures["dispatched_per_iteration"] == pytest.approx(1, abs=0.1)
    assert figures["handle"]["Submitted"]["calls"] == figures["iterations"]


def test_steady_keeps_fleet_and_queue_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench._placement_loops.SHAPES", 30)
    monkeypatch.setattr("bench._placement_loops._FULL_AFTER", 5)
    figures = steady(3, 30, seconds=0.1, samples=5)
    assert figures["wrong"] == []
    assert figures["queued"] == 30
    assert figures["dispatched_per_iteration"] == pytest.approx(1, abs=0.1)
    assert figures["handle"]["AttemptFinished"]["calls"] == figures["iterations"]


def test_time_is_counted_by_the_clock_that_is_given() -> None:
    ticks = iter(range(0, 10**9, 1000))
    figures = cold(2, seconds=0.05, samples=0, clock=lambda: next(ticks))
    assert figures["handle"]["Submitted"]["mean_us"] == 1.0
    assert figures["handle_ms"] == {"p50": 0.001, "p99": 0.001, "max": 0.001}


def test_a_decision_that_was_made_from_other_views_is_found_out() -> None:
    harness = PlacementHarness(2, Settings())
    before = harness.views()
    harness.feed(events.Submitted(task("t", 20)))
    sample = harness.sample(before, {})
    assert sample is not None
    assert harness.disagreements([sample]) == []
    harness.accept_dispatches()
    later = replace(sample, views=harness.views())
    assert any("scores" in text for text in harness.disagreements([later]))


def test_the_views_of_a_completion_are_those_without_the_item_that_ends() -> None:
    harness = PlacementHarness(2, Settings())
    before = harness.views()
    (placed,) = harness.submit(task("t", 20))
    freed = harness.views(without=placed)
    assert [view.free for view in freed] == [view.free for view in before]
    assert [view.in_flight for view in freed] == [0, 0]
    assert [view.free for view in harness.views()] != [view.free for view in before]


@pytest.mark.parametrize(
    ("cold_rate", "steady_rate", "pooled", "long", "expected"),
    [
        (3000, 10_000, 0.8, {"per_s": 7000}, []),
        (2999, 10_000, 0.8, {"per_s": 7000}, ["cold, 20 clusters"]),
        (3000, 9999, 0.8, {"per_s": 7000}, ["steady, 20 clusters"]),
        (3000, 10_000, 0.79, {"per_s": 7000}, ["steady with 50 pools"]),
        (3000, 15_000, 0.8, {"per_s": 9900}, ["long queue"]),
        (3000, 10_000, 0.8, {"per_s": 9999, "handle_ms": {"p50": 1, "p99": 5.1, "max": 6}}, ["long queue"]),
        (3000, 10_000, 0.8, {"per_s": 9999, "bytes_per_item": 1024}, ["long queue"]),
        (3000, 10_000, 0.8, {"per_s": 9999, "wrong": ["t: x"]}, ["every re-checked decision is the naive one"]),
        (3000, 10_000, 0.8, {"per_s": 9999, "checked": 9}, ["the requested number of decisions was checked"]),
    ],
)
def test_floors_are_judged_by_the_fleet_of_twenty(
    cold_rate: float, steady_rate: float, pooled: float, long: dict[str, Any], expected: list[str]
) -> None:
    colds, steadies = [loop(20, cold_rate), loop(2, 1)], [loop(20, steady_rate), loop(2, 1)]
    document = report(colds, steadies, loop(20, steady_rate * pooled, checked=0), loop(20, **long), 50)
    assert missed(document) == expected
    assert table(document).count("MISS") == len(expected) + 2  # the aims


def test_unmeasured_values_get_no_verdict() -> None:
    document = report([loop(2, 1)], [loop(2, 1)], loop(2, 1, checked=0), None, 20)
    assert [one["promise"][:5] for one in document["floors"]] == ["stead", "every", "the r"]
    assert missed(document) == []


def test_one_line_of_json_and_an_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.placement.cold", lambda clusters, seconds, samples, clock: loop(clusters, 1))
    monkeypatch.setattr("bench.placement.steady", lambda clusters, *_: loop(clusters, 1))
    assert main(["--json", "--clusters", "20", "--check", "--checks", "1"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert (document["bench"], document["clock"]) == ("placement", "wall")
    assert main(["--clusters", "2", "--queued", "0", "--check", "--checks", "1"]) == 0
    assert "floors:" in capsys.readouterr().out

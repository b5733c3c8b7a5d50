"""Explanations that can be read: of what waits, of what was placed, of what there is little to say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskState
from ray_multicluster_scheduler.control_plane.runtime.explanation import wait_explanation
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation, explanation_text
from ray_multicluster_scheduler.scheduler.lifecycle.placement.start_estimate import StartEstimate
from ray_multicluster_scheduler.scheduler.lifecycle.prerequisites import UnmetPrerequisites
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import PreparedAttempt
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import task

FULL = SchedulingDecision("t", 1.0, None, "NO_CAPACITY", "mac is full", (), "enough is freed on mac")


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


class TestWhatIsSaidOfAnItemThatWaits:
    def test_in_the_queue(self) -> None:
        ahead = [("a", "a higher priority"), ("b", "it came first")]
        explanation = wait_explanation(None, (5, ahead), FULL, StartEstimate(1, 2, 3))
        assert explanation["unblocked_by"] == "enough is freed on mac"
        assert explanation["waits_for"] == []
        assert explanation["queue"] == {
            "position": 5,
            "ahead": [{"id": "a", "why": "a higher priority"}, {"id": "b", "why": "it came first"}],
        }
        assert explanation["estimate"]["likely_s"] == 2

    def test_before_the_queue(self) -> None:
        missing = UnmetPrerequisites("waits for its argument x", {"a": None}, 0.0)
        explanation = wait_explanation(missing, None, None, StartEstimate(why="waits"))
        assert explanation["waits_for"] == ["a"]
        assert explanation["unblocked_by"] == (
            "its arguments have values and a succeeds and it is 1970-01-01 00:00:00 UTC"
        )
        assert (explanation["queue"], explanation["estimate"]["text"]) == (None, "unknown: waits")

    def test_one_that_is_held(self) -> None:
        held = StartEstimate(why="is held")
        assert wait_explanation(None, None, FULL, held, held=True)["unblocked_by"] == "an operator releases it"
        missing = UnmetPrerequisites("", {"a": None})
        assert wait_explanation(missing, None, None, held, held=True)["unblocked_by"] == (
            "a succeeds and an operator releases it"
        )
        assert wait_explanation(None, None, FULL, None, held=True)["unblocked_by"] is None

    def test_one_that_does_not_wait(self) -> None:
        assert wait_explanation(None, None, FULL, None) == {
            "unblocked_by": None,
            "waits_for": [],
            "queue": None,
            "estimate": None,
        }


def test_a_waiting_item_shows_its_position_who_is_ahead_and_what_would_help(plane: ControlPlane) -> None:
    plane.task("t1", cpus=8)
    for name in ("t2", "t3"):
        plane.submit(plane.with_payload(task(name, 8)))
    until(lambda: plane.runtime.record("t3") is not None)
    explanation = plane.runtime.explain("t3")
    assert (explanation["state"], explanation["code"], explanation["cluster"]) == ("QUEUED", "NO_CAPACITY", None)
    assert explanation["queue"]["position"] == 2
    assert [one["id"] for one in explanation["queue"]["ahead"]] == ["t2"]
    assert explanation["queue"]["ahead"][0]["why"]
    assert explanation["unblocked_by"] == "enough is freed on one node of mac"
    assert explanation["estimate"]["text"].startswith("unknown: ")
    assert explanation["decision"]["candidates"][0]["rejections"][0]["code"] == "NO_CAPACITY"
    assert explanation["attempts"] == []
    text = str(explanation)
    assert "t3 (task t3) is QUEUED" in text
    assert "continues when: enough is freed on one node of mac" in text
    assert "may start: unknown" in text
    assert "Position 2 in the queue, behind\n  t2: " in text
    assert "Clusters, as of " in text
    assert "mac      waits" in text


def test_one_that_is_held_before_it_could_be_queued(plane: ControlPlane) -> None:
    first = plane.task("t1")
    second = plane.submit(plane.with_payload(task("t2", after=("t1",))))
    second.hold("not yet")
    until(lambda: second.explain()["sentence"] == "waits for t1 to succeed; is held: not yet")
    plane.finish(first)
    until(lambda: second.explain()["code"] == "HELD")
    assert second.explain()["unblocked_by"] == "an operator releases it"
    assert second.explain()["estimate"]["text"] == "unknown: is held: not yet"
    second.release()
    until(lambda: second.state is TaskState.RUNNING)


def test_the_decision_of_one_that_waits_is_fresh(plane: ControlPlane) -> None:
    first = plane.task("t1", cpus=8)
    waiting = plane.submit(plane.with_payload(task("t2", 8)))
    until(lambda: waiting.state is TaskState.QUEUED)
    before = waiting.explain()["decision"]["at"]
    assert waiting.explain()["decision"]["at"] > before
    plane.finish(first)


def test_a_placed_item_shows_its_candidates_attempts_and_environment(plane: ControlPlane) -> None:
    handle = plane.task("t1", retries=1)
    converted = (("/home/a/x", "/Users/a/x"),)
    plane.runtime.preparation.prepared["t1"] = PreparedAttempt("mac", 1, {"pip": ["numpy"]}, converted=converted)
    plane.fail(handle)
    until(lambda: handle.attempt == 2 and handle.state is TaskState.RUNNING)
    explanation = handle.explain()
    assert [(one["attempt"], one["cluster"], one["ended_as"]) for one in explanation["attempts"]] == [
        (1, "mac", "failed"),
        (2, "mac", None),
    ]
    fences = [one["fence"] for one in explanation["attempts"]]
    assert fences == sorted(set(fences))
    assert (explanation["queue"], explanation["estimate"], explanation["unblocked_by"]) == (None, None, None)
    text = str(explanation)
    assert "mac      chosen" in text
    assert {"capacity", "threshold"} <= set(explanation["decision"]["filters"])
    assert "Filters applied to each: " in text
    assert "Attempts\n  ATTEMPT  CLUSTER" in text
    assert "live" in text
    assert "path /home/a/x became /Users/a/x" in text
    assert "pip: ['numpy']" in text
    assert text.count("RETRYING") == 1, "its history is reported"
    plane.finish(handle, 2)


def test_it_is_data_first(plane: ControlPlane) -> None:
    explanation = plane.task("t1").explain()
    assert isinstance(explanation, dict)
    assert explanation_text(json.loads(json.dumps(explanation))) == str(explanation)


def test_short_explanation() -> None:
    assert str(Explanation(id="t", state="EXPIRED", code="EXPIRED", sentence="it ended long ago")) == (
        "t is EXPIRED\n  EXPIRED: it ended long ago"
    )


def test_more_are_ahead_than_are_named() -> None:
    queue = {"position": 12, "ahead": [{"id": "a", "why": "first"}]}
    text = explanation_text({"id": "t", "state": "QUEUED", "code": "X", "sentence": "waits", "queue": queue})
    assert text.endswith("Position 12 in the queue, behind\n  a: first\n  and 10 more")

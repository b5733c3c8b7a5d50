"""The spans of an item, from its history alone."""

from __future__ import annotations

from dataclasses import replace

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.service.tracing.item_spans import (
    span_id_of,
    spans_of,
    trace_id_of,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from tests.unit.service.service_plane import a_task

S = TaskState


def a_row(
    *steps: tuple[TaskState, int, str | None], fence: int | None = None, earlier: tuple[int, ...] = ()
) -> ItemRow:
    """One step each second: its state, attempt and cluster."""
    history = tuple(
        Transition("t", at, state, attempt, float(at), f"CODE_{at}", f"sentence {at}", cluster)
        for at, (state, attempt, cluster) in enumerate(steps, start=1)
    )
    _, attempt, cluster = steps[-1]
    row = ItemRow(
        task=a_task("t", name="n", owner="ann"), number=1, history=history, priority=0, attempt=attempt, cluster=cluster
    )
    return replace(row, fence=fence, earlier_fences=earlier)


def test_a_cluster_that_was_lost_is_a_moment_of_the_attempt_and_its_error() -> None:
    row = a_row(
        (S.QUEUED, 0, None),
        (S.DISPATCHING, 1, "mac"),
        (S.RUNNING, 1, "mac"),
        (S.LOST, 1, "mac"),
        (S.RETRYING, 1, "mac"),
        (S.QUEUED, 1, None),
        (S.DISPATCHING, 2, "gpu"),
        (S.RUNNING, 2, "gpu"),
        (S.SUCCEEDED, 2, "gpu"),
        fence=9,
        earlier=(4,),
    )
    whole, wait, again, first, second = spans_of(row)
    assert (whole.part, whole.name, whole.started_at, whole.ended_at, whole.error) == ("", "task n", 1.0, 9.0, None)
    assert (whole.attributes["rmcs.cluster"], whole.attributes["rmcs.attempts"]) == ("gpu", 2)
    assert "rmcs.pool" not in whole.attributes
    assert spans_of(replace(row, pool="nlp"))[0].attributes["rmcs.pool"] == "nlp"
    assert (wait.started_at, wait.ended_at, wait.attributes["rmcs.reason"]) == (1.0, 2.0, "CODE_1")
    assert (again.started_at, again.ended_at, again.attributes["rmcs.reason"]) == (5.0, 7.0, "CODE_6")
    assert [one.name for one in again.events] == ["RETRYING", "QUEUED"]
    assert (first.started_at, first.ended_at, first.attributes["rmcs.fence"]) == (2.0, 5.0, 4)
    assert first.error == "CODE_5: sentence 5"
    assert [one.name for one in first.events] == ["DISPATCHING", "RUNNING", "LOST"]
    assert (second.attributes["rmcs.fence"], second.attributes["rmcs.cluster"], second.error) == (9, "gpu", None)


def test_unfinished_items_have_no_spans() -> None:
    assert spans_of(a_row((S.QUEUED, 0, None), (S.DISPATCHING, 1, "mac"), (S.RUNNING, 1, "mac"))) == []


def test_one_that_is_refused_at_once_has_only_itself() -> None:
    (whole,) = spans_of(a_row((S.FAILED, 0, None)))
    assert (whole.started_at, whole.ended_at, whole.error) == (1.0, 1.0, "CODE_1: sentence 1")


def test_ids_are_the_same_each_time_and_others_elsewhere() -> None:
    assert trace_id_of("a", "t") == 0x10F68467EA9E6226BDBF2C604B04D0AC, "traces of before are gone on with"
    assert 0 < trace_id_of("a", "t") < 2**128
    assert 0 < span_id_of("a", "t", "wait 1") < 2**64
    assert len({trace_id_of("a", "t"), trace_id_of("b", "t"), trace_id_of("a", "u")}) == 3
    assert len({span_id_of("a", "t", part) for part in ("", "wait 1", "attempt 1", "attempt 2")}) == 4

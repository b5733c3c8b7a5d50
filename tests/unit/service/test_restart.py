"""A service that is stopped and started again: what waits waits on, what runs is taken up, values arrive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.common.object_argument import ObjectArgument
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of, value_of
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from ray_multicluster_scheduler.control_plane.store import Change
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import encode_outcome
from tests.unit.client_api.control_plane import until
from tests.unit.service.service_plane import CPUS, ServicePlane, a_job, a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ServicePlane]:
    with ServicePlane(tmp_path / "state") as plane:
        yield plane


def again(plane: ServicePlane, item_id: str) -> Item:
    item = plane.runtime.item(item_id)
    assert item is not None, f"{item_id} is not known any more"
    return item


def call(plane: ServicePlane, task_id: str, function: object, *args: object, objects: tuple[str, ...] = ()) -> Item:
    """A task that really calls something, if the plane works."""
    blobs = {digest_of(data): data for data in (pickling.dumps(function), pickling.dumps((args, {})))}
    digests = list(blobs)
    described = a_task(task_id, function_digest=digests[0], arguments_digest=digests[-1])
    return plane.taken(described, objects, blobs=blobs)


def add(first: int, second: int) -> int:
    return first + second


# ---- items


def test_the_submission_interval_outlives_a_restart_also_when_what_was_sent_is_over(tmp_path: Path) -> None:
    with ServicePlane(tmp_path / "state", submission_interval_s=40.0) as plane:
        first = running(plane.taken(a_job("first")))
        plane.end(CallResult("first", 1, "succeeded"))
        until(first.done)
        waits = plane.taken(a_job("waits"))
        until(lambda: waits.state is TaskState.QUEUED)
        sent_at = next(step.at for step in plane.store.steps("first") if step.state is TaskState.DISPATCHING)
        plane.restart()
        until(lambda: plane.runtime.machine.view("mac", plane.runtime.clock.now()).has_snapshot)
        explanation = plane.runtime.run(plane.runtime.explanation_of("waits"))
        assert (explanation["state"], explanation["code"]) == ("QUEUED", "SUBMISSION_INTERVAL")
        view = plane.runtime.machine.view("mac", plane.runtime.clock.now())
        assert view.next_submission_at == pytest.approx(sent_at + 40.0)
        assert plane.placed == []


def test_what_is_queued_stays_queued_and_what_runs_is_adopted(plane: ServicePlane) -> None:
    running(plane.taken(a_task("runs", CPUS)))
    waits = plane.taken(a_task("waits", CPUS, priority=3))
    until(lambda: waits.state is TaskState.QUEUED)
    plane.restart()
    assert again(plane, "runs").state is TaskState.RUNNING
    assert again(plane, "waits").state is TaskState.QUEUED
    until(lambda: plane.adopted)
    assert [(one.task_id, one.attempt) for one in plane.adopted] == [("runs", 1)]
    assert plane.placed == []
    plane.finish(again(plane, "runs"), pickling.dumps("kept"))
    until(lambda: plane.placed)
    plane.finish(running(again(plane, "waits")))
    found = plane.find_item("runs")
    assert found is not None
    assert value_of(found.outcome) == "kept"  # type: ignore[arg-type]


def test_the_fields_of_pools_and_a_priority_with_a_fraction_survive(plane: ServicePlane) -> None:
    fields = {"labels": {"team": "nlp"}, "pool": "nlp", "preemptible": False, "min_runtime_s": 60.0}
    plane.runtime.post_user_event(events.PoolChanged(Pool(name="nlp")))
    running(plane.taken(a_task("runs", CPUS)))
    plane.taken(a_task("low", CPUS, priority=2))
    plane.taken(a_task("between", CPUS, priority=2, **fields))
    plane.runtime.post_user_event(events.PriorityChanged("between", 2.5))
    plane.taken(a_task("high", CPUS, priority=3.0))
    until(lambda: plane.runtime.machine.record("between").wanted.priority == 2.5)
    for _ in range(2):
        plane.restart()
        machine = plane.runtime.machine
        assert machine.record("between").task.pool_fields == fields
        assert str([machine.record(one).wanted.priority for one in ("low", "between", "high")]) == "[2, 2.5, 3]"
        assert list(machine.first_positions(3, 0.0)) == ["high", "between", "low"]
        stored = plane.store.item("between")
        assert stored is not None
        assert stored.status.priority == 2.5
        explanation = plane.runtime.run(plane.runtime.explanation_of("between"))
        assert explanation.items() >= {**fields, "priority": 2.5}.items()


def test_it_may_be_restarted_again_and_again(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t")))
    for _ in range(3):
        plane.restart()
        until(lambda: plane.adopted)
        item = again(plane, "t")
        assert (item.state, item.attempt) == (TaskState.RUNNING, 1)
    plane.finish(item)
    plane.restart()
    assert plane.runtime.item("t") is None
    assert plane.runtime.unfinished() == []


def test_what_was_held_and_what_was_closed_stays_so(plane: ServicePlane) -> None:
    plane.runtime.post_user_event(events.CordonChanged("mac", True))
    item = plane.taken(a_task("t"))
    plane.runtime.post_user_event(events.HoldRequested("t", "not today"))
    until(lambda: "not today" in str(plane.runtime.run(plane.runtime.explanation_of("t"))))
    until(lambda: plane.store.fleet().clusters)
    assert item.state is not TaskState.RUNNING
    plane.restart()
    assert "not today" in str(plane.runtime.run(plane.runtime.explanation_of("t")))
    plane.runtime.post_user_event(events.ReleaseRequested("t"))
    plane.runtime.post_user_event(events.CordonChanged("mac", False))
    running(again(plane, "t"))


def test_park_is_idempotent_and_answers_nothing_by_itself(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t")))
    plane.runtime.park()
    plane.runtime.park()
    assert not item.done()
    plane.store.close()
    plane.start()
    assert again(plane, "t").state is TaskState.RUNNING


# ---- values of other items


def test_the_value_of_an_item_is_an_argument_before_and_after_its_end(plane: ServicePlane) -> None:
    first = running(plane.taken(a_task("first")))
    early = plane.taken(a_task("early"), ["result-first"])
    assert early.state is TaskState.PENDING
    plane.finish(first, b"value")
    running(early)
    late = running(plane.taken(a_task("late"), ["result-first"]))
    for item in (early, late):
        assert plane.runtime.call_and_wait(lambda one=item: plane.runtime.payload_cache.objects_of(one.id)) == [
            ("result-first", b"value")
        ]


def test_the_value_of_one_that_the_machine_has_forgotten(tmp_path: Path) -> None:
    with ServicePlane(tmp_path / "state", kept_finished=0, works=True) as plane:
        item = call(plane, "first", add, 1, 2)
        until(item.done)
        del item
        until(lambda: plane.runtime.record("first") is None)
        second = call(plane, "second", add, ObjectArgument(0), 4, objects=("result-first",))
        until(second.done)
        assert value_of(second.outcome) == 7  # type: ignore[arg-type]


def test_what_waits_for_a_value_hears_of_it_after_a_restart(plane: ServicePlane) -> None:
    running(call(plane, "first", add, 1, 2))
    call(plane, "second", add, ObjectArgument(0), ObjectArgument(0), objects=("result-first",))
    plane.restart()
    until(lambda: plane.adopted)
    assert again(plane, "second").state is TaskState.PENDING
    plane.works = True
    plane.runtime.call_and_wait(lambda: plane.work("first"))
    second = again(plane, "second")
    until(second.done)
    assert value_of(second.outcome) == 6  # type: ignore[arg-type]


def test_a_value_that_came_before_the_restart_is_sent_with_what_starts_after_it(plane: ServicePlane) -> None:
    large = "x" * 100_000
    running(plane.taken(a_task("wide", CPUS)))
    plane.store.put_blob(put := pickling.dumps("put"))
    names = ("result-wide", digest_of(put))
    call(plane, "second", "{}-{}".format, ObjectArgument(0), ObjectArgument(1), objects=names)
    wide = again(plane, "wide")
    plane.works = True
    plane.runtime.post_user_event(events.CordonChanged("mac", True))
    until(lambda: plane.store.fleet().clusters)
    plane.finish(wide, pickling.dumps(large))
    until(lambda: again(plane, "second").state is TaskState.QUEUED)
    plane.restart()
    plane.runtime.post_user_event(events.CordonChanged("mac", False))
    second = again(plane, "second")
    until(second.done)
    assert error_of(second.outcome) is None  # type: ignore[arg-type]
    assert value_of(second.outcome) == f"{large}-put"  # type: ignore[arg-type]


@pytest.mark.parametrize("many", [1, 20])
def test_nothing_starts_after_a_restart_before_its_values_are_there(plane: ServicePlane, many: int) -> None:
    """They are all ready to be sent in the moment in which the process begins."""
    plane.finish(running(plane.taken(a_task("first"))), pickling.dumps(3))
    running(plane.taken(a_task("wide", CPUS)))
    for number in range(many):
        item = call(plane, f"second-{number}", add, ObjectArgument(0), number, objects=("result-first",))
        until(lambda item=item: item.state is TaskState.QUEUED)
    plane.works, plane.cpus = True, 10 * CPUS
    plane.restart()
    for number in range(many):
        item_id = f"second-{number}"
        until(lambda item_id=item_id: plane.runtime.item(item_id) is None or again(plane, item_id).done())
        found = plane.find_item(item_id)
        assert found is not None
        assert value_of(found.outcome) == 3 + number  # type: ignore[arg-type]


def test_an_argument_that_fails_fails_who_waits_for_it(plane: ServicePlane) -> None:
    first = running(plane.taken(a_task("first")))
    waits = plane.taken(a_task("waits"), ["result-first"])
    plane.restart()
    first = again(plane, "first")
    error = pickling.dumps(ValueError("mine"))
    plane.end(CallResult("first", 1, "failed", error, failure=FailureClass.USER, error_type="ValueError"))
    waits = again(plane, "waits")
    until(waits.done)
    assert isinstance(error_of(waits.outcome), ValueError)  # type: ignore[arg-type]
    late = plane.taken(a_task("late"), ["result-first"])
    until(late.done)
    assert isinstance(error_of(late.outcome), ValueError)  # type: ignore[arg-type]
    assert first.done()


def test_the_value_of_an_item_that_nobody_knows_is_refused(plane: ServicePlane) -> None:
    (refused,) = plane.accept(SubmitRequest(a_task("t"), ["result-never"]))
    assert isinstance(refused, TaskSubmissionError)
    assert "never" in str(refused)
    assert plane.taken(a_task("t")).id == "t"


def test_an_answer_that_was_written_counts_although_it_was_not_confirmed(tmp_path: Path) -> None:
    """Its agent may have forgotten it: without this the work would be done again."""
    with ServicePlane(tmp_path / "state") as plane:
        running(plane.taken(a_task("t")))
        answer = encode_outcome(CallResult("t", 1, "succeeded", pickling.dumps(7)))
        blobs = {answer.digest or "": pickling.dumps(7)}
        plane.store.write(Change(outcomes=[answer], blobs=blobs)).result(60)
        plane.restart()
        until(lambda: plane.store.item("t").status.state is TaskState.SUCCEEDED)  # type: ignore[union-attr]
        item = plane.runtime.run(plane.runtime.find_item("t"))
        assert item is not None
        assert value_of(item.outcome) == 7  # type: ignore[arg-type]
        assert plane.placed == []

"""ServiceRuntime: what was accepted is in the store, once, and the next process goes on with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    ServiceUnavailableError,
    StoreFullError,
    TaskSubmissionError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.outcome import value_of
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import (
    MissingBlobs,
    ServiceRuntime,
    SubmitRequest,
)
from ray_multicluster_scheduler.control_plane.store import Change
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event, PriorityChanged
from tests.support.watched_disk import WatchedDisk
from tests.unit.client_api.control_plane import until
from tests.unit.service.service_plane import BLOBS, A, F, ServicePlane, a_job, a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ServicePlane]:
    with ServicePlane(tmp_path / "state", kept_finished=1) as plane:
        yield plane


def forgotten(plane: ServicePlane, item: Item) -> str:
    """The item is over, and another one after it: the machine does not know it any more."""
    item_id = item.id
    other = running(plane.taken(a_task(f"after-{item_id}")))
    plane.finish(other)
    until(lambda: plane.runtime.record(item_id) is None)
    return item_id


# ---- accepted


def test_an_accepted_item_is_in_the_store_before_the_answer(plane: ServicePlane) -> None:
    (item,) = plane.accept(a_task("t", idempotency_key="k", owner="ann"))
    assert isinstance(item, Item)
    stored = plane.store.item("t")
    assert stored is not None
    assert (stored.new.key, stored.new.owner, set(stored.new.blobs)) == ("k", "ann", {F, A})
    assert plane.store.blob(F) == b"f"
    assert next(step.state for step in plane.store.steps("t")) is TaskState.PENDING


def test_nothing_is_answered_before_it_is_durable(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with ServicePlane(tmp_path / "state", limits={"vfs": disk.name}) as plane:
        disk.full = True
        answer = plane.runtime.start(plane.runtime.accept([SubmitRequest(a_task("t"))], BLOBS))
        with pytest.raises(ServiceUnavailableError, match="cannot be written now") as reported:
            answer.result(20)
        assert "with the same id" in str(reported.value)
        assert plane.placed == []
        again = plane.runtime.start(plane.runtime.accept([SubmitRequest(a_task("t"))], BLOBS))
        disk.full = False
        try:
            (item,) = again.result(20)
        except ServiceUnavailableError:  # there was no room for a moment longer
            (item,) = plane.accept(a_task("t"))
        assert isinstance(item, Item)
        assert plane.store.item("t") is not None
        until(lambda: plane.placed)
        assert len(plane.placed) == 1


def test_an_answer_waits_for_every_item_of_its_batch(tmp_path: Path) -> None:
    """One that was accepted long ago at the end of a batch said nothing of the new one before it."""
    disk = WatchedDisk()
    with ServicePlane(tmp_path / "state", limits={"vfs": disk.name}) as plane:
        running(plane.taken(a_task("old")))
        plane.store.write(Change(settings={"all that came before": b"is written"})).result(60)
        disk.full = True
        both = [SubmitRequest(a_task("new")), SubmitRequest(a_task("old"))]
        with pytest.raises(ServiceUnavailableError):
            plane.runtime.start(plane.runtime.accept(both, BLOBS)).result(20)
        disk.full = False


def test_a_service_that_cannot_go_on_reports_no_work_as_failed(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with ServicePlane(tmp_path / "state", limits={"vfs": disk.name}) as plane:
        runs = running(plane.taken(a_task("runs")))
        failed: list[str] = []
        plane.runtime.when_failed = lambda: failed.append("heard")
        disk.broken = True
        with pytest.raises(ServiceUnavailableError, match="cannot continue"):
            plane.runtime.start(plane.runtime.accept([SubmitRequest(a_task("t"))], BLOBS)).result(20)
        until(lambda: failed)
        assert not runs.done()
        disk.broken = False


def test_the_same_id_twice_is_one_item(plane: ServicePlane) -> None:
    first = plane.taken(a_task("t"))
    again, too = plane.accept(a_task("t"), a_task("t", name="another word"))
    assert again is first
    assert too is first
    plane.finish(running(first), pickling.dumps(7))
    assert len(plane.placed) == 1
    del first, again, too
    over = plane.taken(a_task("t"))
    assert over.done()
    assert value_of(over.outcome) == 7  # type: ignore[arg-type]
    assert len(plane.placed) == 1


def test_two_of_one_id_in_one_batch_are_one_item(plane: ServicePlane) -> None:
    first, again = plane.accept(a_task("t"), a_task("t"))
    assert first is again


def test_idempotency_key_survives_end_and_restart(plane: ServicePlane) -> None:
    first = plane.taken(a_task("t1", owner="ann", name="n", idempotency_key="k"))
    assert plane.taken(a_task("t2", owner="ann", name="n", idempotency_key="k")) is first
    assert plane.taken(a_task("t3", owner="bob", name="n", idempotency_key="k")).id == "t3"
    plane.restart()
    assert plane.taken(a_task("t4", owner="ann", name="n", idempotency_key="k")).id == "t1"
    again = plane.runtime.item("t1")
    assert again is not None
    plane.finish(again, pickling.dumps(1))
    forgotten(plane, again)
    del again, first
    assert plane.taken(a_task("t5", owner="ann", name="n", idempotency_key="k")).id == "t1"
    plane.restart()
    found = plane.taken(a_task("t6", owner="ann", name="n", idempotency_key="k"))
    assert (found.id, found.state) == ("t1", TaskState.SUCCEEDED)
    for name in ("t2", "t4", "t5", "t6"):
        assert plane.store.item(name) is None


def test_an_id_of_another_kind_is_refused(plane: ServicePlane) -> None:
    plane.taken(a_task("t"))
    (live,) = plane.accept(a_job("t"))
    assert isinstance(live, ConfigurationError)
    item = plane.runtime.item("t")
    assert item is not None
    plane.finish(running(item))
    forgotten(plane, item)
    del item
    (over,) = plane.accept(a_job("t"))
    assert isinstance(over, ConfigurationError)


def test_equal_content_is_joined_also_after_a_restart(plane: ServicePlane) -> None:
    first = plane.taken(a_task("t1", content_key="c"))
    assert plane.taken(a_task("t2", content_key="c")) is first
    plane.restart()
    assert plane.taken(a_task("t3", content_key="c")).id == "t1"
    assert plane.store.item("t2") is None


# ---- refused


def test_one_that_is_refused_does_not_harm_the_others(plane: ServicePlane) -> None:
    blobs = {**BLOBS, digest_of(b"x"): b"x"}
    bad = a_task("bad", runtime_env={"env_vars": {"A": float}})
    first, refused, last = plane.accept(a_task("t1"), bad, a_task("t2"), blobs=blobs)
    assert isinstance(first, Item)
    assert isinstance(refused, TaskSubmissionError)
    assert isinstance(last, Item)
    assert plane.store.item("bad") is None
    assert plane.taken(a_task("bad")).id == "bad"


def test_nothing_is_taken_while_the_store_has_trouble(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with ServicePlane(tmp_path / "state", limits={"vfs": disk.name}) as plane:
        disk.full = True
        first = plane.runtime.start(plane.runtime.accept([SubmitRequest(a_task("t"))], BLOBS))
        until(lambda: plane.store.write_problem is not None)
        (refused,) = plane.accept(a_task("u"))
        assert isinstance(refused, StoreFullError)
        disk.full = False
        with suppress(ServiceUnavailableError):
            first.result(20)
        until(lambda: plane.store.write_problem is None)
        assert plane.taken(a_task("u")).id == "u"


def test_no_items_are_accepted_while_draining(plane: ServicePlane) -> None:
    plane.runtime.refuse("is draining and takes nothing new")
    with pytest.raises(ServiceUnavailableError, match="draining"):
        plane.accept(a_task("t"))
    assert plane.store.item("t") is None


def test_missing_payloads_are_named(plane: ServicePlane) -> None:
    (refused,) = plane.accept(SubmitRequest(a_task("t"), ["put"]), blobs={F: b"f"})
    assert isinstance(refused, MissingBlobs)
    assert refused.missing == [A, "put"]
    assert plane.taken(a_task("t")).id == "t"


def test_a_payload_that_came_before_need_not_come_again(plane: ServicePlane) -> None:
    for data in BLOBS.values():
        plane.store.put_blob(data)
    assert plane.taken(a_task("t"), blobs={}).id == "t"


# ---- what is over


def test_one_that_ended_long_ago_is_read_from_the_store(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t", owner="ann")))
    plane.finish(item, pickling.dumps("value"))
    item_id = forgotten(plane, item)
    del item
    found = plane.find_item(item_id)
    assert found is not None
    assert value_of(found.outcome) == "value"  # type: ignore[arg-type]
    assert (found.state, found.attempt, found.cluster) == (TaskState.SUCCEEDED, 1, "mac")
    explanation = plane.runtime.run(plane.runtime.explanation_of(item_id))
    assert (explanation["state"], explanation["cluster"], explanation["owner"]) == ("SUCCEEDED", "mac", "ann")
    assert [step["state"] for step in explanation["history"]][-1] == "SUCCEEDED"
    assert len(explanation["attempts"]) == 1
    assert explanation["decision"]["cluster"] == "mac"


def test_a_job_that_ended_long_ago_keeps_its_face(plane: ServicePlane) -> None:
    job = running(plane.taken(a_job("j")))
    before = plane.runtime.run(plane.runtime.job("j"))
    plane.finish(job)
    forgotten(plane, job)
    del job
    after = plane.runtime.run(plane.runtime.job("j"))
    assert set(after) == set(before)
    assert (before["status"], after["status"]) == ("RUNNING", "SUCCEEDED")
    for key in ("job_id", "entrypoint", "metadata", "cluster", "attempt", "ray_submission_id", "submitted_at"):
        assert after[key] == before[key], key
    assert after["finished_at"] >= after["started_at"]


def test_the_job_of_a_task_is_no_job(plane: ServicePlane) -> None:
    plane.finish(running(plane.taken(a_task("t"))))
    with pytest.raises(UnknownItemError):
        plane.runtime.run(plane.runtime.job("t"))


def test_unaccepted_items_are_unknown(plane: ServicePlane) -> None:
    for ask in (plane.runtime.find_item, plane.runtime.explanation_of, plane.runtime.job):
        with pytest.raises(UnknownItemError):
            plane.runtime.run(ask("never"))


def test_deleted_items_are_expired(plane: ServicePlane) -> None:
    job = running(plane.taken(a_job("j")))
    plane.finish(job)
    forgotten(plane, job)
    del job
    plane.store.expire(math.inf, 0)
    assert plane.find_item("j") is None
    assert plane.runtime.run(plane.runtime.explanation_of("j"))["state"] == "EXPIRED"
    assert plane.runtime.run(plane.runtime.job("j"))["status"] == "EXPIRED"
    (refused,) = plane.accept(a_job("j"))
    assert isinstance(refused, TaskSubmissionError)


def test_an_order_is_answered_when_it_is_written(tmp_path: Path) -> None:
    disk = WatchedDisk()

    async def tell(runtime: ServiceRuntime, event: Event) -> None:
        runtime.post_user_event(event)
        await runtime.until_durable()

    def priority(plane: ServicePlane) -> int | None:
        stored = plane.store.item("t")
        return None if stored is None else stored.status.priority

    with ServicePlane(tmp_path / "state", limits={"vfs": disk.name}) as plane:
        runtime = plane.runtime
        plane.taken(a_task("t", start_after=5e9))
        runtime.run(tell(runtime, PriorityChanged("t", 5)))
        assert priority(plane) == 5
        disk.full = True
        with pytest.raises(ServiceUnavailableError, match="cannot be written now"):
            runtime.run(tell(runtime, PriorityChanged("t", 7)))
        disk.full = False
        with suppress(ServiceUnavailableError):  # there may be no room for a moment longer
            runtime.run(runtime.until_durable())
        until(lambda: priority(plane) == 7)


def test_what_comes_after_one_that_is_over_long_ago(plane: ServicePlane) -> None:
    good = running(plane.taken(a_task("good")))
    plane.finish(good)
    forgotten(plane, good)
    bad = plane.taken(a_task("bad", start_after=5e9))
    plane.runtime.cancel("bad", "enough", force=False)
    until(bad.done)
    forgotten(plane, bad)
    assert plane.taken(a_task("next", after=("good",))).outcome is None
    (refused,) = plane.accept(a_task("never", after=("good", "bad")))
    assert isinstance(refused, TaskSubmissionError)
    assert "because bad, which it is to run after, was cancelled long ago" in str(refused)

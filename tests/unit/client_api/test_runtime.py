"""An embedded control plane: what it knows of an item from the first moment, and that everybody is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    SchedulerError,
    TaskCancelledError,
)
from ray_multicluster_scheduler.common.model import ActorDescription, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job, task

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


class TestOneItemPerKey:
    def test_the_same_id_or_key_is_the_first_item(self, plane: ControlPlane) -> None:
        first = plane.submit(job("j1"))
        assert plane.submit(job("j1"))._item is first._item
        keyed = plane.submit(plane.with_payload(task("t1", name="n", idempotency_key="k")))
        assert plane.submit(plane.with_payload(task("t2", name="n", idempotency_key="k"))).id == keyed.id
        assert plane.submit(plane.with_payload(task("t3", name="n", idempotency_key="k", owner="bob"))).id == "t3"

    def test_also_when_it_is_over_and_no_handle_is_left(self, plane: ControlPlane) -> None:
        plane.finish(plane.task("t1", name="n", idempotency_key="k"))
        assert plane.submit(plane.with_payload(task("t2", name="n", idempotency_key="k"))).id == "t1"
        assert len(plane.runtime.payload_cache) == 0, "the payload of the repeat is not kept"

    def test_many_threads_with_one_key_get_one_item(self, plane: ControlPlane) -> None:
        with ThreadPoolExecutor(8) as pool:
            ids = {
                one.id
                for one in pool.map(lambda n: plane.submit(task(f"t{n}", name="n", idempotency_key="k")), range(200))
            }
        assert len(ids) == 1
        assert len(plane.runtime.unfinished()) == 1

    def test_a_key_whose_item_was_forgotten_is_free_again(self) -> None:
        with ControlPlane(kept_finished=1) as plane:
            first = plane.task("t1", name="n", idempotency_key="k")
            plane.finish(first)
            plane.finish(plane.task("t2"))
            again = plane.task("t3", name="n", idempotency_key="k")
            assert again.id == "t3"
            plane.finish(again)
            assert again.exception() is None
            assert plane.submit(task("t4", name="n", idempotency_key="k")).id == "t3"

    def test_a_job_id_that_was_forgotten_is_free_again_also_while_its_handle_is_held(self) -> None:
        with ControlPlane(kept_finished=1) as plane:
            first = plane.job("j1")
            plane.finish(first)
            plane.finish(plane.job("j2"))
            again = plane.job("j1")
            assert again._item is not first._item
            plane.finish(again)

    def test_the_id_of_something_else_is_refused_not_dropped(self, plane: ControlPlane) -> None:
        handle = plane.task("t1", name="n", idempotency_key="k")
        for wrong in (job("t1"), job("j1", name="n", idempotency_key="k")):
            with pytest.raises(ConfigurationError, match="id or a key"):
                plane.submit(wrong)
        plane.finish(plane.task("t2"))
        with pytest.raises(ConfigurationError, match="id or a key"):
            plane.submit(job("t2"))  # over, and no handle of it is held
        actor = replace(task("a1"), kind="actor", actor=ActorDescription("a1"))
        plane.finish(plane.submit(actor))
        for wrong in (job("a1"), task("a1")):
            with pytest.raises(ConfigurationError, match="id or a key"):
                plane.submit(wrong)
        assert plane.runtime.unfinished() == [handle._item]


class TestAtOnce:
    def test_cancel_right_after_submit(self, plane: ControlPlane) -> None:
        for number in range(50):
            handle = plane.submit(task(f"t{number}"))
            handle.cancel()
            with pytest.raises(TaskCancelledError, match=handle.id):
                handle.result(60)

    def test_a_new_item_can_be_explained_however_many_events_are_unhandled(self, plane: ControlPlane) -> None:
        handles = [plane.submit(task(f"t{number}")) for number in range(2000)]
        assert handles[-1].explain()["id"] == "t1999"

    def test_callbacks_get_the_handle_and_one_that_raises_is_shown_and_stops_no_other(
        self, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        received: list[object] = []
        shown: list[type[BaseException] | None] = []
        monkeypatch.setattr(threading, "excepthook", lambda report: shown.append(report.exc_type))
        handle = plane.task("t1")
        handle.add_done_callback(lambda _: 1 / 0)
        handle.add_done_callback(received.append)
        assert not received
        plane.finish(handle)
        until(lambda: received == [handle])
        assert shown == [ZeroDivisionError]
        handle.add_done_callback(received.append)
        until(lambda: received == [handle, handle])


class TestTheEnd:
    def test_a_submit_after_it_is_a_scheduler_error(self) -> None:
        plane = ControlPlane()
        what = plane.with_payload(task("t1"))
        plane.runtime.close()
        with pytest.raises(SchedulerError, match="was shut down"):
            plane.submit(what)
        assert len(plane.runtime.payload_cache) == 0
        plane.runtime.close()

    def test_everything_unfinished_is_answered_however_much_it_is(self) -> None:
        with ControlPlane(kept_finished=2) as plane:
            over = plane.task("over")
            plane.finish(over)
            handles = [plane.submit(plane.with_payload(task(f"t{number}", cpus=4))) for number in range(10)]
        for handle in handles:
            with pytest.raises(TaskCancelledError, match="shut down before it was over"):
                handle.result(0)
            assert handle.explain()["state"] == "CANCELLED"
        assert over.result(0) is None
        assert len(plane.runtime.payload_cache) == 0

    def test_what_is_known_can_still_be_read_and_nothing_is_started(self) -> None:
        with ControlPlane() as plane:
            handle, left = plane.task("t1"), plane.task("t2")
            plane.runtime.output.write("t1", 1, "stdout", "hello")
            plane.finish(handle)
        before = threading.active_count()
        assert (handle.state, handle.done(), handle.result(), handle.logs()) == (
            TaskState.SUCCEEDED,
            True,
            None,
            "hello",
        )
        assert list(handle.follow_logs()) == ["hello"]
        explanation = handle.explain()
        assert (explanation["state"], explanation["cluster"], explanation["history"][-1]["state"]) == (
            "SUCCEEDED",
            "mac",
            "SUCCEEDED",
        )
        handle.cancel()
        left.cancel()
        assert left.explain()["code"] == "ABANDONED"
        assert threading.active_count() == before
        called = threading.Event()
        handle.add_done_callback(lambda _: called.set())
        assert called.wait(60)

    def test_the_output_of_a_job_is_out_of_reach(self) -> None:
        with ControlPlane() as plane:
            handle, waiting = plane.job("j1"), plane.submit(job("j2", cpus=100_000, queue_timeout=100))
        with pytest.raises(SchedulerError, match="ray job logs j1-cp1-1"):
            handle.logs()
        with pytest.raises(SchedulerError, match="shut down"):
            list(handle.follow_logs())
        assert (waiting.logs(), list(waiting.follow_logs())) == ("", [])

    def test_a_caller_that_waits_for_the_loop_is_answered(self) -> None:
        plane = ControlPlane()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(plane.runtime.run, asyncio.sleep(1000))
            until(lambda: plane.runtime._pending)
            plane.runtime.close()
            with pytest.raises(SchedulerError, match="was shut down"):
                waiting.result(60)
        with pytest.raises(SchedulerError, match="was shut down"):
            plane.runtime.run(asyncio.sleep(0))

    def test_many_threads_submit_while_it_ends(self) -> None:
        """Each gets either an error or a handle that is answered."""
        plane = ControlPlane()
        handles = []

        def submit(worker: int) -> None:
            for number in range(10_000):
                try:
                    handles.append(plane.submit(task(f"t{worker}-{number}")))
                except SchedulerError:
                    return

        with ThreadPoolExecutor(4) as pool:
            submitting = [pool.submit(submit, worker) for worker in range(4)]
            until(lambda: len(handles) > 50)
            plane.runtime.close()
            for one in submitting:
                one.result(20)
        assert all(handle.done() for handle in handles)


class TestADefect:
    @pytest.fixture
    def broken(self, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
        """The brain fails at the next snapshot."""
        handle = plane.runtime.machine.handle

        def fail(event: Event, now: float) -> object:
            if isinstance(event, events.LinkDown):
                raise ZeroDivisionError("oops")
            return handle(event, now)

        monkeypatch.setattr(plane.runtime.machine, "handle", fail)
        return plane

    def test_all_are_notified_and_nothing_more_is_accepted(self, broken: ControlPlane) -> None:
        running, single = broken.task("t1"), broken.job("j1")
        broken.post(events.LinkDown("mac", "x"))
        for handle in (running, single):
            with pytest.raises(SchedulerError, match="has a defect and stopped.*oops"):
                handle.result(60)
        assert single.explain()["state"] == "FAILED"
        with pytest.raises(SchedulerError, match="has a defect and stopped.*oops"):
            broken.submit(task("t2"))

    def test_what_the_machine_does_not_know_is_answered_too(self, broken: ControlPlane) -> None:
        def both() -> object:
            broken.post(events.LinkDown("mac", "x"))
            return broken.submit(job("j1"))

        handle = broken.runtime.call_and_wait(both)
        with pytest.raises(SchedulerError, match="defect"):
            handle.result(60)
        assert handle.explain()["code"] == "ABANDONED"


def test_deleted_items_are_expired() -> None:
    with ControlPlane(kept_finished=2) as plane:
        handles = [plane.task(f"t{number}") for number in range(4)]
        for handle in handles:
            plane.runtime.output.write(handle.id, 1, "stdout", "x")
            plane.finish(handle)
        assert [handle.explain()["state"] for handle in handles] == ["EXPIRED", "EXPIRED", "SUCCEEDED", "SUCCEEDED"]
        assert [handle.logs() for handle in handles] == ["", "", "x", "x"]
        assert handles[0].state is TaskState.SUCCEEDED, "the handle itself knows"

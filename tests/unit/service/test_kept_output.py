"""What tasks printed is read after a restart of the service, too, until retention takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ResultLostError
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.control_plane.admin_api.retention import Retention
from ray_multicluster_scheduler.scheduler.connection.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.scheduler_core import keeping_collector
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_outcome import outcome_of
from tests.support.links import FakeClock
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import ServicePlane, a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ServicePlane]:
    with ServicePlane(tmp_path / "state", keep_payloads_s=100.0) as plane:
        yield plane


def prints(plane: ServicePlane, task_id: str, text: str, stream: str = "stdout", attempt: int = 1) -> None:
    collector = plane.runtime.collector
    plane.runtime.ask(lambda: collector.output("mac", task_id, attempt, stream, text))


def printed(plane: ServicePlane, task_id: str, stream: str | None = None, attempt: int = 1) -> str:
    item = plane.look(task_id)
    assert item is not None
    return plane.runtime.run(plane.runtime.printed(item, attempt, stream))


def killed(plane: ServicePlane) -> None:
    """Its process is gone, and nothing was said or written at its end."""
    plane.runtime._stored.write_output = lambda: None  # type: ignore[method-assign] # what a kill does not do
    plane.restart()


def test_what_an_attempt_printed_is_there_after_a_kill(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t")))
    prints(plane, "t", "one\n")
    prints(plane, "t", "two\n", "stderr")
    plane.runtime.ask(lambda: plane.runtime.collector.dropped("mac", "t", 1, 7))
    plane.finish(item)
    killed(plane)
    assert printed(plane, "t") == "one\ntwo\n\n[7 characters more were dropped]\n"
    assert printed(plane, "t", "stderr") == "two\n\n[7 characters more were dropped]\n"
    assert printed(plane, "t", attempt=2) == ""


def test_it_is_written_with_the_end_and_not_after_it(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t")))
    prints(plane, "t", "hello\n")
    plane.finish(item)
    assert len(plane.store.output("t", 1)) == 1


def test_who_prints_nothing_writes_nothing(plane: ServicePlane) -> None:
    plane.finish(running(plane.taken(a_task("t"))))
    assert plane.store.output("t", 1) == []
    assert printed(plane, "t") == ""


def test_an_attempt_that_runs_over_a_stop_has_all_of_its_output(plane: ServicePlane) -> None:
    running(plane.taken(a_task("t")))
    prints(plane, "t", "before\n")
    plane.restart()
    assert printed(plane, "t") == "before\n"
    prints(plane, "t", "after\n")
    assert printed(plane, "t") == "before\nafter\n"
    item = plane.look("t")
    assert item is not None
    plane.finish(item)
    killed(plane)
    assert printed(plane, "t") == "before\nafter\n"


def test_what_runs_is_written_now_and_then_for_the_case_of_a_kill(
    plane: ServicePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping_collector, "_OUTPUT_S", 0.01)
    running(plane.taken(a_task("t")))
    for number, text in enumerate(("one\n", "two\n"), start=1):
        prints(plane, "t", text)
        until(lambda number=number: len(plane.store.output("t", 1)) == number)  # type: ignore[misc] # bound at once
    killed(plane)
    assert printed(plane, "t") == "one\ntwo\n"


def test_a_result_that_is_told_again_prints_nothing_twice(plane: ServicePlane) -> None:
    """The process was killed when the answer was written, and not yet what follows from it."""
    running(plane.taken(a_task("t")))
    prints(plane, "t", "once\n")
    plane.runtime.ask(plane.runtime._stored.write_output)
    plane.runtime.ask(lambda: plane.runtime._stored.durable_log.ended(outcome_of(CallResult("t", 1, "succeeded"))))
    plane.restart()
    item = plane.look("t")
    assert item is not None
    until(item.done)
    prints(plane, "t", "once\n")
    assert printed(plane, "t") == "once\n"


def test_an_earlier_attempt_is_read_from_the_store(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t", retries=1, lost_retries=1, crash_retries=1)))
    prints(plane, "t", "first\n")
    plane.end(CallResult("t", 1, "failed", code="CRASH", message="it fell"))
    until(lambda: item.attempt == 2 or item.done())
    killed(plane)
    assert printed(plane, "t", attempt=1) == "first\n"


def test_what_is_pushed_out_of_memory_before_it_is_written_leaves_a_gap(plane: ServicePlane) -> None:
    items = {name: running(plane.taken(a_task(name, 0))) for name in ("t", "other")}
    plane.runtime.output._max_total = 1000
    prints(plane, "t", "written\n")
    plane.runtime.ask(plane.runtime._stored.write_output)
    prints(plane, "t", "x" * 300)
    plane.runtime.ask(lambda: plane.runtime.kill(items["t"], "no more", force=True))  # it ends, and says no last word
    until(items["t"].done)
    prints(plane, "other", "y" * 700)
    expected = "written\n[300 characters of output were dropped here]\n"
    assert printed(plane, "t") == expected, "before the loss is written"
    prints(plane, "t", "late\n")
    assert printed(plane, "t") == expected + "late\n"
    assert printed(plane, "t", "stderr") == "[300 characters of output were dropped here]\n"
    plane.runtime.ask(plane.runtime._stored.write_output)
    until(lambda: len(plane.store.output("t", 1)) == 2)
    assert printed(plane, "t") == expected + "late\n"
    killed(plane)
    assert printed(plane, "t") == expected + "late\n"


def test_what_is_written_and_pushed_out_has_no_gap(plane: ServicePlane) -> None:
    items = {name: running(plane.taken(a_task(name, 0))) for name in ("t", "other")}
    plane.runtime.output._max_total = 1000
    prints(plane, "t", "x" * 300)
    plane.finish(items["t"])
    until(lambda: len(plane.store.output("t", 1)) == 1)
    prints(plane, "other", "y" * 700)
    assert plane.runtime.output.text("t", 1) == ""
    assert printed(plane, "t") == "x" * 300
    plane.finish(items["other"])


def test_retention_takes_it_with_the_payloads(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t")))
    prints(plane, "t", "hello\n")
    plane.finish(item)
    (digest,) = plane.store.output("t", 1)
    clock = FakeClock(plane.runtime.clock.now())
    plane.restart()
    retention = Retention(plane.store, plane.config.settings, clock)
    retention.tidy()
    retention.tidy()
    assert printed(plane, "t") == "hello\n"
    clock.time += 200
    retention.tidy()
    retention.tidy()
    assert plane.store.blob(digest or "") is None
    with pytest.raises(ResultLostError, match="keep_payloads_s"):
        printed(plane, "t")


def test_over_http_it_is_read_and_followed_after_a_restart(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state") as service:
        service.submit("t")
        item = service.plane.look("t")
        assert item is not None
        prints(service.plane, running(item).id, "hello\n")
        service.plane.finish(item)
        service.restart()
        assert service.get("/api/v1/items/t/logs") == b"hello\n"
        assert service.get("/api/v1/items/t/logs?follow=true") == b"hello\n"


def test_one_attempt_is_followed_to_its_own_end(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.submit("t", retries=1, lost_retries=1, crash_retries=1)
        item = service.plane.look("t")
        assert item is not None
        prints(service.plane, running(item).id, "first\n")
        with ThreadPoolExecutor() as threads:
            one = threads.submit(service.get, "/api/v1/items/t/logs?follow=true&attempt=1")
            service.plane.end(CallResult("t", 1, "failed", code="CRASH", message="it fell"))
            until(lambda: item.attempt == 2)
            prints(service.plane, running(item).id, "second\n", attempt=2)
            assert one.result(30) == b"first\n"
            two = threads.submit(service.get, "/api/v1/items/t/logs?follow=true&attempt=2")
            assert service.get("/api/v1/items/t/logs?follow=true&attempt=1") == b"first\n", "also when it is over"
            service.plane.end(CallResult("t", 2, "succeeded"))
            assert two.result(30) == b"second\n"


def test_one_attempt_of_a_job_is_followed_to_its_own_end(tmp_path: Path) -> None:
    class Dashboard:
        def client(self, _: str) -> Dashboard:
            return self

        async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
            yield f"of {submission_id}\n"

        async def close(self) -> None: ...

    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
        said = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "retries": 1}
        service.post("/api/v1/items", {"task": said})
        until(lambda: service.get("/api/v1/items/j")["state"] == "RUNNING")
        with ThreadPoolExecutor() as threads:
            one = threads.submit(service.get, "/api/v1/items/j/logs?follow=true&attempt=1")
            service.plane.post(events.AttemptFinished("j", 1, "failed", failure=FailureClass.USER, sentence="it broke"))
            until(lambda: service.get("/api/v1/items/j")["attempt"] == 2)
            first = one.result(30)
            two = threads.submit(service.get, "/api/v1/items/j/logs?follow=true&attempt=2")
            until(lambda: service.get("/api/v1/items/j")["state"] == "RUNNING")
            service.plane.post(events.AttemptFinished("j", 2, "succeeded"))
            second = two.result(30)
        assert (first.count(b"of "), second.count(b"of ")) == (1, 1)
        assert first != second

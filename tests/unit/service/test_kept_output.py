"""What tasks printed is read after a restart of the service, too, until retention takes it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from ray_multicluster_scheduler.common.exception import (
    ClusterConnectionError,
    ResultLostError,
    SchedulerError,
    TaskSubmissionError,
)
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.control_plane.admin_api.events import output_stream
from ray_multicluster_scheduler.control_plane.runtime.service.retention import Retention
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from ray_multicluster_scheduler.scheduler.scheduler_core import result_collector
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import encode_outcome
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
    plane.runtime.call_and_wait(lambda: collector.output("mac", task_id, attempt, stream, text))


def printed(plane: ServicePlane, task_id: str, stream: str | None = None, attempt: int = 1) -> str:
    item = plane.find_item(task_id)
    assert item is not None
    return plane.runtime.run(plane.runtime.output_of(item, attempt, stream))


def killed(plane: ServicePlane) -> None:
    """Its process is gone, and nothing was said or written at its end."""
    plane.runtime._persistence.write_output = lambda: None  # type: ignore[method-assign] # what a kill does not do
    plane.restart()


def test_what_an_attempt_printed_is_there_after_a_kill(plane: ServicePlane) -> None:
    item = running(plane.taken(a_task("t")))
    prints(plane, "t", "one\n")
    prints(plane, "t", "two\n", "stderr")
    plane.runtime.call_and_wait(lambda: plane.runtime.collector.dropped("mac", "t", 1, 7))
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


def test_no_write_without_output(plane: ServicePlane) -> None:
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
    item = plane.find_item("t")
    assert item is not None
    plane.finish(item)
    killed(plane)
    assert printed(plane, "t") == "before\nafter\n"


def test_what_runs_is_written_now_and_then_for_the_case_of_a_kill(
    plane: ServicePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_collector, "_OUTPUT_INTERVAL_S", 0.01)
    running(plane.taken(a_task("t")))
    for number, text in enumerate(("one\n", "two\n"), start=1):
        prints(plane, "t", text)
        until(lambda number=number: len(plane.store.output("t", 1)) == number)  # type: ignore[misc] # bound at once
    killed(plane)
    assert printed(plane, "t") == "one\ntwo\n"


def test_a_result_that_is_reported_again_prints_nothing_twice(plane: ServicePlane) -> None:
    """The process was killed when the answer was written, and not yet what follows from it."""
    running(plane.taken(a_task("t")))
    prints(plane, "t", "once\n")
    plane.runtime.call_and_wait(plane.runtime._persistence.write_output)
    plane.runtime.call_and_wait(
        lambda: plane.runtime._persistence.durable_log.add_outcome(encode_outcome(CallResult("t", 1, "succeeded")))
    )
    plane.restart()
    item = plane.find_item("t")
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
    plane.runtime.call_and_wait(plane.runtime._persistence.write_output)
    prints(plane, "t", "x" * 300)
    plane.runtime.call_and_wait(
        lambda: plane.runtime.kill(items["t"], "no more", force=True)
    )  # it ends, and says no last word
    until(items["t"].done)
    prints(plane, "other", "y" * 700)
    expected = "written\n[300 characters of output were dropped here]\n"
    assert printed(plane, "t") == expected, "before the loss is written"
    prints(plane, "t", "late\n")
    assert printed(plane, "t") == expected + "late\n"
    assert printed(plane, "t", "stderr") == "[300 characters of output were dropped here]\n"
    plane.runtime.call_and_wait(plane.runtime._persistence.write_output)
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
        item = service.plane.find_item("t")
        assert item is not None
        prints(service.plane, running(item).id, "hello\n")
        service.plane.finish(item)
        service.restart()
        assert service.get("/api/v1/items/t/logs") == b"hello\n"
        assert service.get("/api/v1/items/t/logs?follow=true") == b"hello\n"


def test_one_attempt_is_followed_to_its_own_end(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.submit("t", retries=1, lost_retries=1, crash_retries=1)
        item = service.plane.find_item("t")
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


class Dashboard:
    """Plays a cluster that knows these jobs, or all of them."""

    def __init__(self, *unknown: str) -> None:
        self.unknown = unknown

    def client(self, _: str) -> Dashboard:
        return self

    async def job_info(self, submission_id: str) -> dict[str, Any] | None:
        return {"status": "RUNNING"}

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        yield f"of {submission_id}\n"

    async def job_logs(self, submission_id: str) -> str:
        if submission_id.endswith(self.unknown):
            raise TaskSubmissionError(f"Cluster mac knows no job {submission_id}.")
        return f"of {submission_id}\n"

    async def close(self) -> None: ...


def test_one_attempt_of_a_job_is_followed_to_its_own_end(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
        output = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "retries": 1}
        service.post("/api/v1/items", {"task": output})
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


def a_job_of_two_attempts(service: HttpService) -> None:
    output = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "retries": 1}
    service.post("/api/v1/items", {"task": output})
    until(lambda: service.get("/api/v1/items/j")["state"] == "RUNNING")
    service.plane.post(events.AttemptFinished("j", 1, "failed", failure=FailureClass.USER, sentence="it broke"))
    until(lambda: service.get("/api/v1/items/j")["state"] == "RETRYING")


def test_each_attempt_of_a_job_has_its_own_output(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
        a_job_of_two_attempts(service)
        ray_id = service.plane.runtime.jobs.ray_id
        first, second = (f"of {ray_id('j', number)}\n".encode() for number in (1, 2))
        asked = "/api/v1/items/j/logs?attempt="
        assert service.get(f"{asked}1") == first, "also while the next one waits"
        until(lambda: service.get("/api/v1/items/j")["state"] == "RUNNING")
        for follow in ("", "&follow=true"):
            assert service.get(f"{asked}1{follow}") == first
        assert service.get(f"{asked}2") == second
        service.plane.post(events.AttemptFinished("j", 2, "succeeded"))
        until(lambda: service.get("/api/v1/items/j")["state"] == "SUCCEEDED")
        for follow in ("", "&follow=true"):
            assert [service.get(f"{asked}{number}{follow}") for number in (1, 2)] == [first, second]
        service.restart()
        service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
        assert service.plane.runtime.record("j") is None
        assert [service.get(f"{asked}{number}") for number in (1, 2)] == [first, second]
        assert service.get("/api/v1/items/j/logs") == second
        assert service.ask("GET", f"{asked}3")[0] == 422


def test_the_part_of_an_attempt_that_the_cluster_has_lost_is_reported(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.plane.runtime.clients = Dashboard("-1")  # type: ignore[assignment]  # a fake
        a_job_of_two_attempts(service)
        status, reported = service.ask("GET", "/api/v1/items/j/logs?attempt=1")
        assert status == 422
        assert reported["detail"].startswith("Cluster mac knows no job j-")
        assert service.get("/api/v1/items/j/logs?attempt=1&follow=true") == b"", "another one may be heard after it"


def test_an_attempt_that_never_ran_has_printed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = ServicePlane.dispatch

    def refused_first(plane: ServicePlane, orders: list[Dispatch]) -> None:
        for order in orders:
            if order.attempt == 1:
                plane.post(events.DispatchRefused("j", 1, FailureClass.CRASH, "REFUSED", "it said no"))
            else:
                dispatch(plane, [order])

    monkeypatch.setattr(ServicePlane, "dispatch", refused_first)
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.plane.runtime.clients = Dashboard("-1")  # type: ignore[assignment]  # a fake
        service.post("/api/v1/items", {"task": {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}}})
        until(lambda: service.get("/api/v1/items/j")["state"] == "RUNNING")
        status, reported = service.ask("GET", "/api/v1/items/j/logs?attempt=1")
        assert (status, reported["code"]) == (409, "RESULT_LOST")
        assert reported["detail"].startswith("Attempt 1 of job j printed nothing: it did not run on mac (")
        assert service.get("/api/v1/items/j/logs?attempt=1&follow=true") == b""


def test_a_job_that_never_ran_has_printed_nothing_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(plane: ServicePlane, orders: list[Dispatch]) -> None:
        for order in orders:
            plane.post(events.DispatchRefused("j", order.attempt, FailureClass.CRASH, "REFUSED", "it said no"))

    monkeypatch.setattr(ServicePlane, "dispatch", refuse)
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        output = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "crash_retries": 0}
        service.post("/api/v1/items", {"task": output})
        until(lambda: service.get("/api/v1/items/j")["state"] == "FAILED")
        for _ in range(2):
            service.plane.runtime.clients = Dashboard("-1")  # type: ignore[assignment]  # a fake
            assert service.get("/api/v1/items/j/logs") == b""
            assert service.ask("GET", "/api/v1/items/j/logs?attempt=1")[0] == 409, "who asks for it learns why"
            service.restart()


@pytest.mark.parametrize("error", [TaskSubmissionError, ClusterConnectionError])
def test_an_attempt_that_is_refused_while_it_is_followed_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[SchedulerError]
) -> None:
    """The answer has begun by then, and cannot become another one."""
    waiting, dispatch = threading.Event(), ServicePlane.dispatch

    def second_only(plane: ServicePlane, orders: list[Dispatch]) -> None:
        if orders[0].attempt > 1:
            dispatch(plane, orders)
        waiting.set()

    async def no_logs(*_: object) -> str:
        raise error("no")

    monkeypatch.setattr(ServicePlane, "dispatch", second_only)
    monkeypatch.setattr(Dashboard, "job_logs", no_logs)
    with HttpService(tmp_path / "state", submission_interval_s=0) as service, ThreadPoolExecutor() as threads:
        service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
        service.post("/api/v1/items", {"task": {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}}})
        assert waiting.wait(30)
        with urlopen(f"{service.address}/api/v1/items/j/logs?follow=true&attempt=1", timeout=30) as answer:
            one = threads.submit(answer.read)
            service.plane.post(events.DispatchRefused("j", 1, FailureClass.CRASH, "REFUSED", "it said no"))
            assert one.result(30) == b""


def a_running_job(service: HttpService) -> None:
    service.post("/api/v1/items", {"task": {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}}})
    until(lambda: service.get("/api/v1/items/j")["state"] == "RUNNING")


@pytest.mark.parametrize("attempt", ["", "&attempt=1"])
def test_a_follower_of_a_job_on_a_silent_cluster_is_notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: str
) -> None:
    async def silent(*_: object) -> None:
        raise ClusterConnectionError("mac does not answer.", cluster="mac")

    monkeypatch.setattr(Dashboard, "job_info", silent)
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
        a_running_job(service)
        status, reported = service.ask("GET", f"/api/v1/items/j/logs?follow=true{attempt}")
        assert (status, reported["detail"]) == (502, "mac does not answer.")


class Flickers(Dashboard):
    """It is away once, in the middle of the log."""

    lost = False

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        yield "one\ntw"
        if not self.lost:
            self.lost = True
            raise ClusterConnectionError("mac does not answer.", cluster="mac")
        yield "o\nthree\n"


@pytest.mark.parametrize(("attempt", "received"), [("", b"one\ntwo\nthree\n"), ("&attempt=1", b"one\ntw")])
def test_a_cluster_that_is_away_in_the_middle_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, attempt: str, received: bytes
) -> None:
    """All attempts: it is waited for, and nothing is repeated. One: its end, and a repeated request gets the reason."""
    monkeypatch.setattr(output_stream, "RETRY_S", 0.1)
    with HttpService(tmp_path / "state", submission_interval_s=0) as service, ThreadPoolExecutor() as threads:
        dashboard = service.plane.runtime.clients = Flickers()  # type: ignore[assignment]  # a fake
        a_running_job(service)
        reported = threads.submit(service.get, f"/api/v1/items/j/logs?follow=true{attempt}")
        until(lambda: dashboard.lost)
        if not attempt:
            service.plane.post(events.AttemptFinished("j", 1, "succeeded"))
        assert reported.result(30) == received
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_what_cannot_be_read_when_the_job_is_over_is_noted_in_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flickers, "lost", property(lambda _: False, lambda *_: None))
    monkeypatch.setattr(output_stream, "RETRY_S", 0.1)
    with HttpService(tmp_path / "state", submission_interval_s=0) as service, ThreadPoolExecutor() as threads:
        service.plane.runtime.clients = Flickers()  # type: ignore[assignment]  # a fake
        a_running_job(service)
        reported = threads.submit(service.get, "/api/v1/items/j/logs?follow=true")
        service.plane.post(events.AttemptFinished("j", 1, "succeeded"))
        assert reported.result(30) == b"one\ntw\n[the rest cannot be read: mac does not answer.]\n"

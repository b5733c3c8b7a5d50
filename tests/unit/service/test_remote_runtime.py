"""A program that uses a service: values, exceptions, and what happens while the service is away."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.remote.submission_sender import SubmissionSender
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    NoFeasibleClusterError,
    ResultLostError,
    SchedulerError,
    TaskCancelledError,
    TaskSubmissionError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import CPUS

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", works=True) as service:
        yield service


def add(first: int, second: int = 1) -> int:
    return first + second


def refuse(word: str) -> None:
    raise ValueError(word)


# ---- values


def test_a_value_comes_back(scheduler: UnifiedScheduler) -> None:
    assert scheduler.submit_task(add, (1, 2)) == 3
    handle = scheduler.submit_task_async(add, (1,), {"second": 5})
    assert handle.result(60) == 6
    assert (handle.state, handle.cluster, handle.attempt) == (TaskState.SUCCEEDED, "mac", 1)


def test_a_large_value_and_large_arguments(scheduler: UnifiedScheduler) -> None:
    large = "x" * 200_000
    assert scheduler.submit_task(str.upper, (large,)) == large.upper()


def test_what_cannot_be_sent_for_a_defect_of_ours_does_not_wait_for_ever(
    scheduler: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    assert scheduler.submit_task(add, (1,)) == 2
    with monkeypatch.context() as patch:
        patch.setattr(SubmissionSender, "_pack", broken)
        with pytest.raises(TaskSubmissionError, match="RuntimeError: a bug"):
            scheduler.submit_task(add, (1,))
    assert scheduler.submit_task(add, (2,)) == 3


def test_many_at_once(scheduler: UnifiedScheduler, service: HttpService) -> None:
    handles = [scheduler.submit_task_async(add, (number,)) for number in range(1200)]
    assert [handle.result(30) for handle in handles] == list(range(1, 1201))
    assert len(service.plane.placed) == 1200


def test_the_exception_of_user_code_is_itself(scheduler: UnifiedScheduler) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        scheduler.submit_task(refuse, ("mine",))
    assert "on cluster 'mac'" in caught.value.__notes__[0]
    assert "the remote traceback" in str(caught.value.__cause__)


def test_handles_and_what_was_put_are_arguments(scheduler: UnifiedScheduler, service: HttpService) -> None:
    service.plane.works = False
    first = scheduler.submit_task_async(add, (1, 2))
    second = scheduler.submit_task_async(add, (first, first))
    third = scheduler.submit_task_async(add, (second, scheduler.put(100)))
    until(lambda: first.state is TaskState.RUNNING)
    assert third.state is TaskState.PENDING
    service.plane.works = True
    service.plane.runtime.call_and_wait(lambda: service.plane.work(first.id))
    assert third.result(60) == 106
    assert scheduler.submit_task(add, (first, 10)) == 13
    assert scheduler.submit_task(len, (scheduler.put("x" * 100_000),)) == 100_000


def test_an_argument_that_failed(scheduler: UnifiedScheduler) -> None:
    bad = scheduler.submit_task_async(refuse, ("mine",))
    with pytest.raises(ValueError, match="mine"):
        scheduler.submit_task(add, (bad,))


def test_the_handle_of_another_scheduler_is_refused(scheduler: UnifiedScheduler, service: HttpService) -> None:
    with UnifiedScheduler(address=service.address) as other:
        handle = other.submit_task_async(add, (1, 2))
        with pytest.raises(TaskSubmissionError, match="another scheduler"):
            scheduler.submit_task_async(add, (handle,))
        assert handle.result(60) == 3


# ---- items


def test_cancel_wait_and_explain(scheduler: UnifiedScheduler, service: HttpService) -> None:
    service.plane.works = False
    handle = scheduler.submit_task_async(add, (1,))
    until(lambda: handle.state is TaskState.RUNNING)
    assert "RUNNING" in str(handle.explain())
    waits = scheduler.submit_task_async(add, (1,), resource_requirements={"CPU": CPUS})
    until(lambda: waits.state is TaskState.QUEUED)
    assert scheduler.explain(waits.id)["state"] == "QUEUED"
    for one in (handle, waits):
        assert one.cancel() is True
        with pytest.raises(TaskCancelledError):
            one.result(60)
        assert (one.cancel(), scheduler.cancel(one.id)) == (False, False)


def test_draining_does_not_wait_for_what_was_cancelled(
    scheduler: UnifiedScheduler, service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.plane.works = False
    handle = scheduler.submit_task_async(add, (1,))
    until(lambda: handle.state is TaskState.RUNNING)
    monkeypatch.setattr(service.plane, "cancel", lambda order: None)
    assert handle.cancel() is True
    scheduler.shutdown(drain=True)
    assert handle.state is TaskState.RUNNING


def test_hold_priority_and_release(scheduler: UnifiedScheduler, service: HttpService) -> None:
    scheduler.pause_queue(owner="ann", reason="holiday")
    handle = scheduler.submit_task_async(add, (1,), owner="ann")
    handle.hold("later")
    scheduler.set_priority(handle, 9)
    scheduler.resume_queue(owner="ann")
    until(lambda: "later" in str(handle.explain()))
    assert handle.explain()["priority"] == 9
    assert not handle.done()
    scheduler.release(handle.id)
    assert handle.result(60) == 2


def test_what_is_known_of_the_fleet(scheduler: UnifiedScheduler) -> None:
    assert [row["name"] for row in scheduler.list_clusters(refresh=True)] == ["mac"]
    assert scheduler.cluster_info("mac")["name"] == "mac"
    assert scheduler.fleet_resources()["total"]["CPU"] == CPUS
    assert scheduler.plan({"CPU": 2}).cluster == "mac"
    assert scheduler.plan({"CPU": 2 * CPUS}).cluster is None
    assert scheduler.plan(kind="job").cluster == "mac"
    with pytest.raises(ConfigurationError, match="moon"):
        scheduler.submit_task_async(add, (1,), preferred_cluster="moon").result(60)
    with pytest.raises(ConfigurationError, match="moon"):
        scheduler.cordon("moon")
    scheduler.cordon("mac")
    assert scheduler.drain("mac", 5)
    scheduler.uncordon("mac")


def test_jobs(scheduler: UnifiedScheduler, service: HttpService) -> None:
    service.plane.works = False
    job_id = scheduler.submit_job("ls", submission_id="mine", metadata={"a": "b"})
    assert job_id == "mine"
    assert scheduler.submit_job("ls", submission_id="mine") == "mine"
    until(lambda: scheduler.job_info("mine")["status"] == "RUNNING")
    assert scheduler.job_info("mine")["metadata"] == {"a": "b"}
    assert [row["job_id"] for row in scheduler.list_jobs()] == ["mine"]
    scheduler.cancel("mine")
    until(lambda: scheduler.job_info("mine")["status"] == "STOPPED")
    with pytest.raises(UnknownItemError):
        scheduler.job_info("never")


def test_a_key_means_one_item_for_all_programs(scheduler: UnifiedScheduler, service: HttpService) -> None:
    first = scheduler.submit_task_async(add, (1, 2), idempotency_key="k", owner="ann")
    with UnifiedScheduler(address=service.address) as other:
        again = other.submit_task_async(add, (5, 5), idempotency_key="k", owner="ann")
        assert again.id == first.id
        assert again.result(60) == 3
    assert len(service.plane.placed) == 1


def test_equal_items_are_joined(scheduler: UnifiedScheduler, service: HttpService) -> None:
    service.plane.works = False
    first = scheduler.submit_task_async(add, (1, 2), dedup="content")
    again = scheduler.submit_task_async(add, (1, 2), dedup="content")
    assert again.id == first.id
    until(lambda: first.state is TaskState.RUNNING)
    service.plane.runtime.call_and_wait(lambda: service.plane.work(first.id))
    assert (first.result(60), again.result(60)) == (3, 3)


def test_a_task_and_a_job_cannot_have_one_id(scheduler: UnifiedScheduler, service: HttpService) -> None:
    service.plane.works = False
    task = scheduler.submit_task_async(add, (1, 2))
    until(lambda: task.state is TaskState.RUNNING)
    with pytest.raises(ConfigurationError, match="an id or a key"):
        scheduler.submit_job(entrypoint="ls", submission_id=task.id)
    service.plane.runtime.call_and_wait(lambda: service.plane.work(task.id))
    assert task.result(60) == 3


def test_the_submission_of_a_job_that_can_never_run_reports_it(
    scheduler: UnifiedScheduler, service: HttpService
) -> None:
    """Every time, however late the report of its end comes."""
    until(lambda: service.get("/api/v1/clusters/mac")["state"] == "UP")
    for _ in range(20):
        with pytest.raises(NoFeasibleClusterError, match="No cluster can ever run"):
            scheduler.submit_job("ls", entrypoint_resources={"GPU": 1000})


def test_output_comes_from_the_service(scheduler: UnifiedScheduler, service: HttpService) -> None:
    service.plane.works = False
    handle = scheduler.submit_task_async(add, (1,))
    until(lambda: handle.state is TaskState.RUNNING)
    runtime = service.plane.runtime
    runtime.call_and_wait(lambda: runtime.collector.output("mac", handle.id, 1, "stdout", "hello\n"))
    assert handle.logs() == "hello\n"
    pieces = handle.follow_logs()
    assert next(pieces) == "hello\n"
    runtime.call_and_wait(lambda: service.plane.work(handle.id))
    assert list(pieces) == []


def test_callbacks_run_when_it_is_over(scheduler: UnifiedScheduler) -> None:
    called = threading.Event()
    scheduler.submit_task_async(add, (1,)).add_done_callback(lambda _: called.set())
    assert called.wait(60)


# ---- what cannot be sent


def test_one_that_is_too_large_does_not_harm_the_others(tmp_path: Path) -> None:
    with (
        HttpService(tmp_path / "small", works=True, max_payload_bytes=2_000_000) as service,
        UnifiedScheduler(address=service.address) as scheduler,
    ):
        before = scheduler.submit_task_async(add, (1,))
        large = scheduler.submit_task_async(len, ("x" * 5_000_000,))
        after = scheduler.submit_task_async(add, (2,))
        with pytest.raises(TaskSubmissionError, match="larger than"):
            large.result(60)
        assert (before.result(60), after.result(60)) == (2, 3)


def test_what_cannot_be_written_down_is_refused_and_the_next_one_is_not(scheduler: UnifiedScheduler) -> None:
    with pytest.raises(SchedulerError, match=r"written down|runtime_env"):
        scheduler.submit_task_async(add, (1,), runtime_env={"config": {"x": object()}}).result(60)
    assert scheduler.submit_task(add, (1,)) == 2


def test_a_value_that_was_forgotten(scheduler: UnifiedScheduler, service: HttpService) -> None:
    handle = scheduler.submit_task_async(add, (1, 2), idempotency_key="k", owner="ann")
    assert handle.result(60) == 3
    service.restart()
    service.plane.store.expire_payloads(time.time() + 10)
    with UnifiedScheduler(address=service.address) as other:
        again = other.submit_task_async(add, (1, 2), idempotency_key="k", owner="ann")
        with pytest.raises(ResultLostError, match="keep_payloads_s"):
            again.result(60)


# ---- the service is away


def test_who_waits_goes_on_after_a_restart_and_nothing_is_doubled(
    scheduler: UnifiedScheduler, service: HttpService
) -> None:
    service.plane.works = False
    before = [scheduler.submit_task_async(add, (number,)) for number in range(3)]
    until(lambda: all(one.state is TaskState.RUNNING for one in before))
    service.stop()
    meanwhile = [scheduler.submit_task_async(add, (number,)) for number in range(10, 13)]
    assert not any(one.accepted(0) for one in meanwhile)
    service.plane.placed.clear()
    service.plane.works = True
    service.start()
    assert [one.result(20) for one in meanwhile] == [11, 12, 13]
    for one in before:
        service.plane.runtime.call_and_wait(lambda one=one: service.plane.work(one.id))
    assert [one.result(20) for one in before] == [1, 2, 3]
    assert [one.task_id for one in service.plane.placed] == [one.id for one in meanwhile]
    assert len(service.get("/api/v1/items")["items"]) == 6


def test_shutdown_leaves_the_work_running(service: HttpService) -> None:
    service.plane.works = False
    with UnifiedScheduler(address=service.address) as scheduler:
        handle = scheduler.submit_task_async(add, (1,))
    assert handle.accepted(0)
    item = service.plane.runtime.item(handle.id)
    assert item is not None
    until(lambda: item.state is TaskState.RUNNING)
    assert service.plane.cancelled == []
    with UnifiedScheduler(address=service.address) as other:
        assert other.explain(handle.id)["state"] == "RUNNING"


def test_another_program_can_ask_and_cancel_by_id(scheduler: UnifiedScheduler, service: HttpService) -> None:
    service.plane.works = False
    job_id, task = scheduler.submit_job("ls"), scheduler.submit_task_async(add, (1,))
    until(lambda: task.state is TaskState.RUNNING)
    with UnifiedScheduler(address=service.address) as other:
        assert [row["job_id"] for row in other.list_jobs()] == [job_id]
    with UnifiedScheduler(address=service.address) as other:
        other.cancel(task.id)
        with pytest.raises(TaskCancelledError):
            task.result(60)
        with pytest.raises(UnknownItemError):
            other.cancel("never")


def test_shutdown_with_drain_waits(service: HttpService) -> None:
    scheduler = UnifiedScheduler(address=service.address)
    handles = [scheduler.submit_task_async(add, (number,)) for number in range(20)]
    scheduler.shutdown(drain=True)
    assert all(one.done() for one in handles)
    assert handles[7].result() == 8


def test_no_server_is_reported_within_seconds() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        scheduler = UnifiedScheduler(address=f"http://127.0.0.1:{free.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(SchedulerError, match=r"does not answer.*rmcs up"):
            scheduler.submit_task(add, (1,))
        assert time.monotonic() - begun < 30


def test_something_else_there_is_a_sentence(service: HttpService) -> None:
    scheduler = UnifiedScheduler(address=f"{service.address}/elsewhere")
    with pytest.raises(SchedulerError, match="/elsewhere/api/v1/fleet: Not Found"):
        scheduler.submit_task(add, (1,))


def test_a_service_that_was_started_again_on_another_port_is_followed(
    scheduler: UnifiedScheduler, service: HttpService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
    assert scheduler.submit_task(add, (1,)) == 2
    before, plane = service.address, service.plane.runtime.control_plane
    service.stop()
    later = scheduler.submit_task_async(add, (2,))
    service.port = 0
    service.start()
    assert service.address != before
    with StateFolder(tmp_path / "home") as state:
        state.announce(address=service.address, control_plane=plane)
        assert later.result(30) == 3

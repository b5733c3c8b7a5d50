"""A service that receives a submission and cannot write it: nothing that may run is reported as not accepted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler import SchedulerError, UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.remote import acceptance
from ray_multicluster_scheduler.control_plane.runtime.service import service_runtime
from tests.support.watched_disk import WatchedDisk
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import runtime_of
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


@pytest.fixture
def service(tmp_path: Path, disk: WatchedDisk) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", limits={"vfs": disk.name}) as service:
        try:
            yield service
        finally:
            disk.full = False


def interrupt_when(scheduler: UnifiedScheduler, received: str) -> threading.Thread:
    """One Ctrl+C, when the service has said that it cannot."""

    def press() -> None:
        until(lambda: received in runtime_of(scheduler)._sender.last_error, 60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def submit_when_full(service: HttpService, disk: WatchedDisk, *, job: bool = True, interrupt: bool = False) -> None:
    """A whole program. A task is waited for as its caller does, a job until it is accepted."""
    with UnifiedScheduler(address=service.address) as scheduler:
        scheduler.list_clusters()  # the service was there
        until(lambda: service.get("/api/v1/clusters")["clusters"][0]["state"] == "UP")  # who looks lets it ask
        service.plane.runtime.run(service.plane.runtime.until_durable())
        disk.full = True
        thread = interrupt_when(scheduler, "cannot be written now") if interrupt else None
        try:
            if job:
                scheduler.submit_job("true", submission_id="ghost")
            else:
                scheduler.submit_task_async(len, ("abc",)).result()
        finally:
            if thread is not None:
                thread.join()


def test_late_write_is_reported_as_possibly_accepted(
    service: HttpService, disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service_runtime, "_DURABILITY_CHECK_S", 0.05)
    monkeypatch.setattr(acceptance, "TIMEOUT_S", 2.0)
    began = time.monotonic()
    with pytest.raises(SchedulerError) as reported:
        submit_when_full(service, disk)
    assert time.monotonic() - began < 12.0  # it is not waited for a second time at the end
    assert "has not confirmed ghost within 2 s: ghost cannot be written now" in reported.value.message
    assert "is full" in reported.value.message
    assert "check with `rmcs job status ghost`" in str(reported.value.next_step)
    output = capsys.readouterr().err
    assert "was not accepted" not in output
    assert "does not answer" not in output
    disk.full = False
    until(lambda: [order.task_id for order in service.plane.placed] == ["ghost"], 60)


def test_program_end_reports_possibly_accepted_items(
    service: HttpService, disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service_runtime, "_DURABILITY_CHECK_S", 0.05)
    monkeypatch.setattr(acceptance, "TIMEOUT_S", 2.0)
    with UnifiedScheduler(address=service.address) as scheduler:
        disk.full = True
        handle = scheduler.submit_task_async(len, ("abc",))
    output = capsys.readouterr().err
    assert f"not confirmed by {service.address}: {handle.id}. {handle.id} cannot be written now" in output
    assert f"It may have been accepted, and run: check with `rmcs explain {handle.id}`" in output
    assert "was not accepted" not in output
    assert "does not answer" not in output


def test_one_interrupt_ends_the_wait_for_acceptance(
    service: HttpService, disk: WatchedDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        submit_when_full(service, disk, interrupt=True)
    assert time.monotonic() - began < 25.0
    output = capsys.readouterr().err
    assert output.count("not confirmed") == 1
    assert "check with `rmcs job status ghost`" in output


def test_an_interrupt_elsewhere_in_the_program_waits_for_no_acceptance_either(
    service: HttpService, disk: WatchedDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        submit_when_full(service, disk, interrupt=True, job=False)
    assert time.monotonic() - began < 25.0
    assert "check with `rmcs explain " in capsys.readouterr().err

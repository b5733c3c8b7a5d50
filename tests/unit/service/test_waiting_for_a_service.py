"""A service that takes nothing, since it is stopping or away: who submits waits for the next one, and learns why."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.remote import acceptance, remote_runtime, submission_sender
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from tests.unit.client_api.actor_plane import Counter
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, runtime_of

pytestmark = pytest.mark.usefixtures("leak_check")


def test_who_waits_for_an_actor_during_a_drain_can_read_why(
    service: ActorService,
    scheduler: UnifiedScheduler,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(submission_sender, "NOTIFY_AFTER_S", 0.3)
    service.plane.runtime.refuse("is draining and takes nothing new")
    with ThreadPoolExecutor() as threads:
        made = threads.submit(scheduler.submit_actor, Counter)
        until(lambda: runtime_of(scheduler).unfinished(), 60)
        (item,) = runtime_of(scheduler).unfinished()
        until(lambda: "draining" in scheduler.explain(item.id)["sentence"])
        explanation = scheduler.explain(item.id)
        assert explanation["code"] == "NOT_ACCEPTED"
        assert "The service is draining and takes nothing new. While this program runs" in explanation["sentence"]
        reported = ""

        def received() -> bool:
            nonlocal reported
            reported += capsys.readouterr().err
            return item.id in reported

        until(received)
        assert f"rmcs: {item.id}: not confirmed yet by {service.address}" in reported
        assert "The service is draining and takes nothing new." in reported
        service.restart()
        made.result(20)
    assert reported.count("not confirmed yet") == 1
    assert "not accepted" not in capsys.readouterr().err


def test_program_end_reports_wait_for_absent_service(
    service: ActorService,
    scheduler: UnifiedScheduler,
    actor: ActorHandle,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(remote_runtime, "NOTIFY_AFTER_S", 0.2)
    monkeypatch.setattr(remote_runtime, "END_TIMEOUT_S", 0.6)
    monkeypatch.setattr(acceptance, "NOTIFY_AFTER_S", 0.2)
    monkeypatch.setattr(acceptance, "TIMEOUT_S", 0.6)
    service.stop()
    handle = scheduler.submit_task_async(time.sleep, (0,))
    capsys.readouterr()
    scheduler.shutdown()
    reported = capsys.readouterr().err
    assert f"rmcs: waiting for {service.address} to accept {handle.id}, at most 0.6 s" in reported
    assert f"rmcs: waiting at most 0.6 s for {service.address} to end {actor._item.id}" in reported
    assert "ends them when this program's lease expires" in reported


def test_it_says_nothing_when_the_service_answers(
    scheduler: UnifiedScheduler, actor: ActorHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    scheduler.shutdown()
    assert capsys.readouterr().err == "", actor

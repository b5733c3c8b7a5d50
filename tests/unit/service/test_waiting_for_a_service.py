"""A service that takes nothing, since it is stopping or away: who submits waits for the next one, and is told why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_multicluster_scheduler.app.client_api.remote import outbound
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
    monkeypatch.setattr(outbound, "SAY_AFTER_S", 0.3)
    service.plane.runtime.refuse("is draining and takes nothing new")
    with ThreadPoolExecutor() as threads:
        made = threads.submit(scheduler.submit_actor, Counter)
        until(lambda: runtime_of(scheduler).unfinished())
        (item,) = runtime_of(scheduler).unfinished()
        until(lambda: "draining" in scheduler.explain(item.id)["sentence"])
        story = scheduler.explain(item.id)
        assert story["code"] == "NOT_ACCEPTED"
        assert "The service is draining and takes nothing new. While this program runs" in story["sentence"]
        told = ""

        def heard() -> bool:
            nonlocal told
            told += capsys.readouterr().err
            return item.id in told

        until(heard)
        assert f"rmcs: {item.id}: not accepted yet by {service.address}" in told
        assert "The service is draining and takes nothing new." in told
        service.restart()
        made.result(20)
    assert told.count("not accepted yet") == 1
    assert "not accepted" not in capsys.readouterr().err

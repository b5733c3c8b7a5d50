"""A client that waits or listens with a token that is no longer valid gets an error at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import NotAllowedError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", auth="token") as running:
        yield running


def revoke(service: HttpService, token: str) -> None:
    service.book.revoke(token.split("_")[1])


def test_events_end_with_their_token(service: HttpService) -> None:
    token = service.token_for("ann", Role.SUBMITTER)
    with UnifiedScheduler(address=service.address, token=token) as scheduler, scheduler.events() as events:
        revoke(service, token)
        began = time.monotonic()
        with pytest.raises(NotAllowedError, match="rejects the token"):
            events.next(60)
        assert time.monotonic() - began < 15
        with pytest.raises(NotAllowedError):
            events.next(1)


async def test_also_those_that_are_awaited(service: HttpService) -> None:
    token = service.token_for("ann", Role.SUBMITTER)
    with UnifiedScheduler(address=service.address, token=token) as scheduler, scheduler.events() as events:
        revoke(service, token)
        with pytest.raises(NotAllowedError):
            await anext(events)


def test_they_end_when_it_expires(service: HttpService) -> None:
    token = service.token_for("ann", Role.SUBMITTER, expires_at=time.time() + 2)
    with UnifiedScheduler(address=service.address, token=token) as scheduler, scheduler.events() as events:
        began = time.monotonic()
        with pytest.raises(NotAllowedError, match="rejects the token"):
            events.next(60)
        assert time.monotonic() - began < 15


def test_callbacks_are_not_called_any_more_and_that_is_reported(
    service: HttpService, caplog: pytest.LogCaptureFixture
) -> None:
    token = service.token_for("ann", Role.SUBMITTER)
    with UnifiedScheduler(address=service.address, token=token) as scheduler:
        listener = scheduler.on_event(lambda event: None)
        with caplog.at_level(logging.WARNING):
            revoke(service, token)
            until(lambda: "no more events come" in caplog.text)
        until(lambda: not listener._thread.is_alive())
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_caller_that_waits_for_a_result_is_notified_at_once(service: HttpService, how: str) -> None:
    values: dict[str, Any] = {"expires_at": time.time() + 2.5} if how == "expired" else {}
    token = service.token_for("ann", Role.SUBMITTER, **values)
    with UnifiedScheduler(address=service.address, token=token) as scheduler:
        handle = scheduler.submit_task_async(int)
        until(lambda: handle.state == "RUNNING")
        time.sleep(0.5)
        if how == "revoked":
            revoke(service, token)
        began = time.monotonic()
        with pytest.raises(NotAllowedError):
            handle.result(60)
        assert time.monotonic() - began < 15

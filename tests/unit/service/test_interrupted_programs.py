"""Ctrl+C in a program that uses a service: what it asked for is stopped, and nobody else's work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler import TaskState, UnifiedScheduler
from ray_multicluster_scheduler.app.client_api import program
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state") as one:
        yield one


def happened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def begun(scheduler: UnifiedScheduler, **options: str) -> str:
    handle = scheduler.submit_task_async(len, ("abc",), **options)  # type: ignore[arg-type]
    until(lambda: handle.state is TaskState.RUNNING)
    return handle.id


def test_a_plain_interrupt_leaves_what_was_accepted_alone(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = UnifiedScheduler(address=service.address)
    begun(scheduler)
    monkeypatch.setattr(program, "_interrupted", happened())
    scheduler._leave(drain=False)
    assert service.plane.cancelled == []


def test_interrupt_cancels_own_items_not_joined_ones(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = UnifiedScheduler(address=service.address), UnifiedScheduler(address=service.address)
    shared = begun(first, idempotency_key="shared")
    assert begun(second, idempotency_key="shared") == shared
    own = begun(second)
    monkeypatch.setattr(program, "_stopping", happened())
    second.shutdown()
    assert [order.task_id for order in service.plane.cancelled] == [own]
    monkeypatch.undo()
    first.shutdown()

"""A task that is cancelled at the moment when its connection opens ends."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import DashboardHttp
from ray_multicluster_scheduler.scheduler.connection.gateway.link import connection as dialling
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Join
from tests.support.eventually import eventually
from tests.support.scripted_agent import WHO
from tests.unit.connection.conftest import Plane
from tests.unit.connection.test_dial_in import LOOPBACK, Listening

Opens = Callable[..., Coroutine[Any, Any, Any]]


@pytest.fixture
async def listening(plane: Plane) -> AsyncIterator[Listening]:
    one = Listening(plane)
    await one.open()
    yield one
    one.door.close()


def when_it_stands(opens: Opens, action: Callable[[], object]) -> Opens:
    """As ``opens``; once it is done, and before anybody else does anything, ``action`` is done."""

    async def opening(*given: Any, **named: Any) -> Any:
        opened = await opens(*given, **named)
        asyncio.get_running_loop().call_soon(action)
        return opened

    return opening


async def test_a_dialler_that_is_stopped_when_its_connection_stands_is_stopped(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[asyncio.Task[None]] = []

    def stop() -> None:
        stops.append(asyncio.create_task(dialer.stop()))

    monkeypatch.setattr(asyncio, "open_connection", when_it_stands(asyncio.open_connection, stop))
    dialer = listening.dialled()
    await eventually(lambda: stops)
    async with asyncio.timeout(60):
        await asyncio.gather(*stops)
    assert len(stops) == 1, "it was dialled once"


async def test_a_dialler_that_is_stopped_at_any_moment_is_stopped(listening: Listening) -> None:
    chance = random.Random(7)
    for _ in range(100):
        dialer = listening.dialled()
        await asyncio.sleep(chance.uniform(0.002, 0.012))
        async with asyncio.timeout(60):
            await dialer.stop()


async def is_cancelled(work: asyncio.Task[Any]) -> bool:
    await asyncio.wait({work}, timeout=30)
    cancelled = work.cancelled()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return cancelled


@pytest.mark.parametrize(("where", "what"), [(asyncio, "open_connection"), (dialling, "_handshake")])
async def test_an_agent_that_is_cancelled_while_it_dials_does_not_go_on(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, where: Any, what: str
) -> None:
    token, _ = plane.port.expect("a", "agent-1", plane.link())

    async def dials_and_goes_on() -> None:
        join = Join("a", "agent-1", [(LOOPBACK, plane.number)], token)
        connection = await dialling.dial(join, WHO, None, time.monotonic() + 60)
        try:
            await asyncio.sleep(120)
        finally:
            connection.writer.close()

    work = asyncio.create_task(dials_and_goes_on())
    monkeypatch.setattr(where, what, when_it_stands(getattr(where, what), work.cancel))
    assert await is_cancelled(work)


async def test_a_cancelled_websocket_open_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    http = DashboardHttp("a", "http://127.0.0.1:1", token=lambda: None)

    async def follows() -> None:
        await http.websocket("/api/jobs/j/logs/tail")
        await asyncio.sleep(120)

    work = asyncio.create_task(follows())
    session = SimpleNamespace(ws_connect=when_it_stands(lambda *_, **__: asyncio.sleep(0), work.cancel))
    monkeypatch.setattr(http, "_open", lambda: session)
    assert await is_cancelled(work)

"""RequestFaults: the requests of a program to its service, which a test loses, delays or answers itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from tests.unit.service.actor_service import runtime_of


class RequestFaults:
    """Intercepts the requests of a program to its service."""

    def __init__(self, scheduler: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
        self._client = runtime_of(scheduler)._client
        self._real = self._client.ask
        self._rules: list[tuple[str, Callable[..., Awaitable[Any]]]] = []
        self.seen: list[tuple[str, str, Any]] = []
        monkeypatch.setattr(self._client, "ask", self._ask)

    def once(self, path: str, rule: Callable[..., Awaitable[Any]]) -> None:
        """The next request of this kind goes through ``rule(pass_on)``."""
        self._rules.append((path, rule))

    async def _ask(self, method: str, path: str, output: Any = None, **values: Any) -> Any:
        self.seen.append((method, path, output))
        for rule in self._rules:
            if path.startswith(rule[0]):
                self._rules.remove(rule)
                return await rule[1](lambda: self._real(method, path, output, **values))
        return await self._real(method, path, output, **values)

    def posts(self) -> list[list[dict[str, Any]]]:
        """The calls that were sent, batch by batch."""
        return [output["calls"] for method, path, output in self.seen if (method, path) == ("POST", "/api/v1/calls")]


async def answer_is_lost(pass_on: Callable[[], Awaitable[Any]]) -> Any:
    await pass_on()
    raise ServiceUnavailableError("no answer came") from TimeoutError()


async def nothing_arrives(_: Callable[[], Awaitable[Any]]) -> Any:
    raise ServiceUnavailableError("no answer came") from TimeoutError()


async def it_is_refused(_: Callable[[], Awaitable[Any]]) -> Any:
    raise ServiceUnavailableError("it is draining")


async def nonsense(_: Callable[[], Awaitable[Any]]) -> Any:
    return {"colour": "red"}


class Gate:
    """Keeps a question until it is opened; ``reached`` says that somebody stands before it."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    async def __call__(self, pass_on: Callable[[], Awaitable[Any]]) -> Any:
        self.reached.set()
        await asyncio.to_thread(self._open.wait, 10)
        return await pass_on()

    def open(self) -> None:
        self._open.set()

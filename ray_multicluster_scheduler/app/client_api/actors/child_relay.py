"""ChildRelay: an actor that passes a program's calls on to actors that were made inside its cluster."""

from __future__ import annotations

import asyncio
from typing import Any

_MISSING_CALL_S = 2.0
"""How long a call waits for those before it, which may have been cancelled."""


class _Turns:
    """Restores the order of the calls of one actor: Ray may start the calls of an asynchronous actor in another one."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def wait(self, number: int) -> None:
        """Wait for the calls with smaller numbers."""
        try:
            while number > self._next:
                turn = self._waiting[number] = asyncio.get_running_loop().create_future()
                await asyncio.wait([turn], timeout=_MISSING_CALL_S)
                if not turn.done():
                    self._continue_with(min(self._waiting))
        finally:
            self._waiting.pop(number, None)
        self._continue_with(max(self._next, number + 1))

    def _continue_with(self, number: int) -> None:
        self._next = number
        turn = self._waiting.get(number)
        if turn is not None and not turn.done():
            turn.set_result(None)


class ChildRelay:
    """A program has one for each cluster from which it received such an actor. It holds no CPU."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turns] = {}

    async def call(
        self, child: Any, actor_id: str, number: int, method: str, num_returns: int, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method. Calls reach ``child`` in the order of their numbers, from 0. Raises what the method raised,
        ActorDiedError."""
        await self._turns.setdefault(actor_id, _Turns()).wait(number)
        made = type(child).method(child, method).options(num_returns=num_returns).remote(*args, **kwargs)
        if num_returns == 1:
            return await made
        return None if made is None else tuple([await one for one in made])

    async def ask(self, child: Any, question: str) -> Any:
        """Call a method of the handle itself, such as ``ready``."""
        answer = await asyncio.to_thread(getattr(type(child), question), child)
        return None if answer is child else answer

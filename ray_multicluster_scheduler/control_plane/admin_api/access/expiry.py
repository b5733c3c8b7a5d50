"""Ends long-lived answers (long polls, event streams, WebSockets) when the caller's token or session ends, and limits
the number of event readers per token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import HTTPConnection

from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import (
    caller_of,
    is_still_valid,
    no_longer_valid,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, Subscription

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access

_T = TypeVar("_T")
READERS_PER_TOKEN = 600
_CLOCK_TOLERANCE_S = 0.02
"""The loop's clock and that of the tokens differ a little; a timer this much later finds the token expired."""


def on_expiry(connection: HTTPConnection, action: Callable[[], object]) -> Callable[[], None]:
    """Run ``action`` on the loop when the caller's token or session ends. Returns a function that cancels this."""
    access: Access = connection.app.state.access
    runtime, caller = connection.app.state.runtime, caller_of(connection)
    if access.tokens is None or caller.token is None:
        return lambda: None

    def ended(name: str | bytes) -> None:
        if name in (caller.token, caller.session):
            runtime.call_soon(action)

    undo: list[Callable[[], object]] = [access.tokens.on_revoked(ended)]
    if caller.session is not None:
        undo.append(access.sessions.on_ended(ended))
    left = access.seconds_left(caller)
    if left is not None:
        undo.append(asyncio.get_running_loop().call_later(max(left, 0.0) + _CLOCK_TOLERANCE_S, action).cancel)
    return lambda: _call_all(undo)


def _call_all(functions: list[Callable[[], object]]) -> None:
    """Call each once, also if this is called again."""
    while functions:
        functions.pop()()


async def run_while_valid(request: HTTPConnection, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``. When the caller's token or session ends, cancels ``work`` and raises NotLetInError."""
    task, expired = asyncio.ensure_future(work), False

    def expire() -> None:
        nonlocal expired
        expired = task.cancel()

    cancel_expiry = on_expiry(request, expire)
    try:
        result = await task
    except asyncio.CancelledError:
        if expired:
            raise no_longer_valid() from None
        raise
    finally:
        cancel_expiry()
        task.cancel()  # the client disconnected
    if not is_still_valid(request):
        raise no_longer_valid()
    return result


def close_on_expiry(connection: HTTPConnection, reader: Subscription) -> Callable[[], None]:
    """End an event subscription when the caller's token or session ends, and count it as one of the token's. Returns a
    function to call when the reader is closed. Raises ServiceUnavailableError, and closes the reader, if the token has
    too many: one token must not use up all of them."""
    access: Access = connection.app.state.access
    token = caller_of(connection).token
    if access.tokens is None or token is None:
        return lambda: None
    if access.event_readers[token] >= READERS_PER_TOKEN:
        reader.close()
        raise ServiceUnavailableError(
            f"The token {token} has {READERS_PER_TOKEN} readers of events, and gets no more.",
            next_step="close some of them, or use another token",
        )
    access.event_readers[token] += 1

    def uncount() -> None:
        access.event_readers[token] -= 1
        if not access.event_readers[token]:
            del access.event_readers[token]

    undo: list[Callable[[], object]] = [uncount, on_expiry(connection, reader.end)]
    return lambda: _call_all(undo)


async def batches_while_valid(connection: HTTPConnection, batches: AsyncIterator[Batch]) -> AsyncIterator[Batch]:
    """The batches until the caller's token or session ends."""
    async for batch in batches:
        if not is_still_valid(connection):
            return
        yield batch

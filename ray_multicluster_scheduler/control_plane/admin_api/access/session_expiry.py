"""What lasts longer than a question ends with the token, or the session, of whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import HTTPConnection

from ray_multicluster_scheduler.control_plane.admin_api.access.rules import (
    caller_of,
    check_still_let_in,
    not_let_in,
)

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access

_T = TypeVar("_T")
_LATER_S = 0.02
"""Clocks differ a little: what is over by one of them is over by the other so much later."""


def when_let_out(connection: HTTPConnection, deed: Callable[[], object]) -> Callable[[], None]:
    """Do this on the loop when the caller's token is revoked or expires, or its session is over. Returns what forgets
    it again. Where no token is asked for, it never is."""
    access: Access = connection.app.state.access
    runtime, caller = connection.app.state.runtime, caller_of(connection)
    if access.book is None or caller.token is None:
        return lambda: None

    def hear(ended: str | bytes) -> None:
        if ended in (caller.token, caller.session):
            runtime.soon(deed)

    forget: list[Callable[[], object]] = [access.book.on_revoked(hear)]
    if caller.session is not None:
        forget.append(access.sessions.on_ended(hear))
    left = access.left_s(caller)
    if left is not None:
        forget.append(asyncio.get_running_loop().call_later(max(left, 0.0) + _LATER_S, deed).cancel)

    def forget_all() -> None:
        while forget:
            forget.pop()()

    return forget_all


async def while_let_in(request: HTTPConnection, work: Coroutine[Any, Any, _T]) -> _T:
    """What it returns, for a caller who may still know it. Raises NotLetInError, at once when that is over."""
    doing, cut_off = asyncio.ensure_future(work), False

    def cut() -> None:
        nonlocal cut_off
        cut_off = doing.cancel()

    forget = when_let_out(request, cut)
    try:
        found = await doing
    except asyncio.CancelledError:
        if cut_off:
            raise not_let_in() from None
        raise
    finally:
        forget()
        doing.cancel()  # whoever asked is gone
    check_still_let_in(request)
    return found

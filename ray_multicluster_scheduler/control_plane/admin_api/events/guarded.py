"""A reader of events hears them only as long as its token is good, and its session is not over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from ray_multicluster_scheduler.app.client_api.events.event_hub import Batch, Subscription
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import caller_of, still_let_in

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access


def end_when_revoked(connection: HTTPConnection, reader: Subscription) -> Callable[[], None]:
    """The end of its token or its session is the end of this reader, at once. Returns what forgets that again."""
    access: Access = connection.app.state.access
    runtime, caller = connection.app.state.runtime, caller_of(connection)
    if access.book is None or caller.token is None:
        return lambda: None

    def hear(ended: str | bytes) -> None:
        if ended in (caller.token, caller.session):
            runtime.soon(reader.end)

    forget = [access.book.on_revoked(hear)]
    if caller.session is not None:
        forget.append(access.sessions.on_ended(hear))

    def at_its_end() -> None:
        while forget:
            forget.pop()()

    return at_its_end


async def while_let_in(connection: HTTPConnection, batches: AsyncIterator[Batch]) -> AsyncIterator[Batch]:
    """Nothing is told with a token that was revoked, or has expired, nor in a session that is over."""
    async for batch in batches:
        if not still_let_in(connection):
            return
        yield batch

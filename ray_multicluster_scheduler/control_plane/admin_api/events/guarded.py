"""A reader of events hears them only as long as its token is good, and its session is not over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import caller_of, still_let_in
from ray_multicluster_scheduler.control_plane.admin_api.access.session_expiry import when_let_out
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import Batch, Subscription

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access

READERS_PER_TOKEN = 600


def end_when_revoked(connection: HTTPConnection, reader: Subscription) -> Callable[[], None]:
    """The end of its token or its session is the end of this reader, at once. Returns what forgets that again.
    Raises ServiceUnavailableError, and closes the reader, if its token has too many already: one must not take them all
    from the others."""
    access: Access = connection.app.state.access
    caller = caller_of(connection)
    if access.book is None or caller.token is None:
        return lambda: None
    token = caller.token
    if access.readers[token] >= READERS_PER_TOKEN:
        reader.close()
        raise ServiceUnavailableError(
            f"The token {token} has {READERS_PER_TOKEN} readers of events, and gets no more.",
            next_step="close some of them, or use another token",
        )
    access.readers[token] += 1

    def one_less() -> None:
        access.readers[token] -= 1
        if not access.readers[token]:
            del access.readers[token]

    forget = [one_less, when_let_out(connection, reader.end)]

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

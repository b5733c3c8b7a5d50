"""ShortWay: what is asked a thousand times a second does not pass all that other questions pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, enforce
from ray_multicluster_scheduler.control_plane.admin_api.http import problems

Handler = Callable[[Request], Awaitable[Response]]


class ShortWay:
    """Calls ``handlers``, by their paths, for POST, if the caller may use them. They read and check what they are sent
    by themselves, and the same ones are routes of the app, too: for every other verb, and for whoever asks what there
    is."""

    def __init__(self, app: ASGIApp, handlers: Mapping[str, tuple[Rule, Handler]]) -> None:
        self._app, self._handlers = app, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None or scope["query_string"]:  # with parameters, which none of them knows, it is refused there
            await self._app(scope, receive, send)
            return
        rule, handler = found
        request = Request(scope, receive)
        try:
            enforce(rule, request)
            response = await handler(request)
        except SchedulerError as error:
            response = await problems.answer(request, error)
        await response(scope, receive, send)

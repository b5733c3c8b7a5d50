"""Guard: finds out who asks, before anything else does."""

from __future__ import annotations

import getpass

from starlette.types import ASGIApp, Receive, Scope, Send

from ray_multicluster_scheduler.control_plane.admin_api.access.roles import anybody


class Guard:
    """Every request that passes it has a ``caller`` in its scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._anybody = anybody(getpass.getuser())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["caller"] = self._anybody
        await self._app(scope, receive, send)

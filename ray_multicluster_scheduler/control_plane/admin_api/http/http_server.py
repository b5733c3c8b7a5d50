"""listen() and http_server(): the listening socket and the uvicorn server of an app, with limits for clients."""

from __future__ import annotations

import functools
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from ray_multicluster_scheduler.common.exception import SERVICE_HEADER, ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import bracketed
from ray_multicluster_scheduler.control_plane.admin_api.http.uvicorn_protocols import (
    HttpLimits,
    LimitedHttpProtocol,
    QuietWebSocketProtocol,
)

_log = get_logger(__name__)
CLOSE_TIMEOUT_S = 2
_API = "v1"
IDLE_S = 75
MESSAGE_BYTES = 64 * 1_024
"""Maximum size of a WebSocket message of a client that is no instance of serving."""
UNACKNOWLEDGED_S = 60
"""A client that acknowledges no sent data for this long is cut off."""
_OWN_FILES = 500
"""Open files reserved for everything but client connections: the store, agents, other services."""


def http_server(
    app: Any, *, limits: HttpLimits | None = None, cert: Path | None = None, key: Path | None = None
) -> uvicorn.Server:
    """Serve it with the socket of :func:`listen`."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=functools.partial(LimitedHttpProtocol, limits=limits or HttpLimits()),  # type: ignore[arg-type] # uvicorn only calls it
            ws=QuietWebSocketProtocol,
            ws_max_size=MESSAGE_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
            headers=[(SERVICE_HEADER, _API)],
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            timeout_keep_alive=IDLE_S,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol: asyncio sets TCP_NODELAY only on sockets that it knows to be TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":  # accepted connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_S * 1_000)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"The service cannot listen on {bracketed(host)}:{port}: {error.strerror}.",
            next_step="give another --port (0 takes a free one)",
        ) from error
    return listener


def possible_connections(wanted: int) -> int:
    """The number of connections, at most ``wanted``, that the limit of open files permits; raises its soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        may = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (may, hard))
            soft = may
        except (OSError, ValueError):
            _log.debug("the limit of open files stays at %d", soft)
        if soft < needed:
            possible = max(soft - _OWN_FILES, soft // 2)
            _log.warning("at most %d connections: this process may open %d files only (ulimit -n)", possible, soft)
            return possible
    return wanted

"""listen() and http_server(): the socket and the server that an app is served with, with bounds for clients."""

from __future__ import annotations

import functools
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.http.bounded_http import BoundedHttp, Bounds
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import shown
from ray_multicluster_scheduler.control_plane.admin_api.http.quiet_websocket import QuietWebSocket
from ray_multicluster_scheduler.control_plane.runtime.problem_documents import SERVICE_HEADER

_log = get_logger(__name__)
CLOSE_PATIENCE_S = 2
_API = "v1"
IDLE_S = 75
MESSAGE_BYTES = 64 * 1_024
"""Of one message that a client sends over a WebSocket."""
UNHEARD_S = 60
"""A client who takes none of what it is sent for so long is cut off."""
_OWN_FILES = 500
"""So many open files are left for everything but connections of clients: the store, agents, other services."""


def http_server(
    app: Any, *, bounds: Bounds | None = None, cert: Path | None = None, key: Path | None = None
) -> uvicorn.Server:
    """To be started with the socket of :func:`listen`."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=functools.partial(BoundedHttp, bounds=bounds or Bounds()),  # type: ignore[arg-type] # it makes one
            ws=QuietWebSocket,
            ws_max_size=MESSAGE_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
            headers=[(SERVICE_HEADER, _API)],
            timeout_graceful_shutdown=CLOSE_PATIENCE_S,
            timeout_keep_alive=IDLE_S,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol: asyncio sends at once (TCP_NODELAY) only where it sees that it is TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":  # whom it accepts has it from here
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_S * 1_000)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"The service cannot listen on {shown(host)}:{port}: {error.strerror}.",
            next_step="give another --port (0 takes a free one)",
        ) from error
    return listener


def connections_in_reach(wanted: int) -> int:
    """How many connections this process can have open: as many, if it may open so many files, of which it asks for more
    if need be. Otherwise it says so in the log."""
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
            in_reach = max(soft - _OWN_FILES, soft // 2)
            _log.warning("at most %d connections: this process may open %d files only (ulimit -n)", in_reach, soft)
            return in_reach
    return wanted

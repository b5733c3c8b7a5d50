"""Whoever takes a connection and says nothing is told apart from a service that takes long to answer."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from typing import Self

SILENT_S = 5.0
"""After so long without an answer it is looked whether anybody answers there at all, …"""
LOOK_S = 5.0
"""… which takes no longer than this."""


_IDLE_S, _AGAIN_S, _TIMES = 20, 10, 4


def notice_death(line: socket.socket) -> None:
    """A line whose other end, or whose way there, is gone without a word ends with an error within a minute, although
    nothing is to be said on it: TCP asks the other end now and then. The names differ between systems."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {"TCP_KEEPIDLE": _IDLE_S, "TCP_KEEPALIVE": _IDLE_S, "TCP_KEEPINTVL": _AGAIN_S, "TCP_KEEPCNT": _TIMES}
    for name, value in values.items():
        option = getattr(socket, name, None)
        if option is not None:
            line.setsockopt(socket.IPPROTO_TCP, option, value)


class SilenceWatch:
    """While the first byte of an answer is awaited on ``line``. Some questions take a service long, and must not be
    asked twice; so another connection asks whether it lives. If that hears nothing either, ``silent`` is set and the
    line is ended, for whoever reads from it."""

    def __init__(self, line: socket.socket, connect: Callable[[float], http.client.HTTPConnection], path: str) -> None:
        self._line, self._connect, self._path = line, connect, path
        self.silent = self._over = False
        self._deciding = threading.Lock()
        self._timer = threading.Timer(SILENT_S, self._look)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._deciding:  # a look that is under way ends no line on which the answer has begun
            self._over = True

    def _look(self) -> None:
        asked = self._connect(LOOK_S)
        try:
            asked.request("GET", self._path)
            asked.getresponse()
        except TimeoutError:
            with self._deciding:
                if not self._over:
                    self.silent = True
                    self._end_line()
        except (OSError, http.client.HTTPException):
            return  # it is away, or answers in whatever way: the line itself will tell
        finally:
            asked.close()

    def _end_line(self) -> None:
        try:
            # Not SSLSocket's own way, which takes its TLS away from under whoever reads.
            socket.socket.shutdown(self._line, socket.SHUT_RDWR)
        except OSError:
            return  # it was ended meanwhile

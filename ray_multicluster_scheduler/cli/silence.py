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


class SilenceWatch:
    """While the first byte of an answer is awaited on ``line``. Some questions take a service long, and must not be
    asked twice; so another connection asks whether it lives. If that hears nothing either, ``silent`` is set and the
    line is ended, for whoever reads from it."""

    def __init__(self, line: socket.socket, connect: Callable[[float], http.client.HTTPConnection], path: str) -> None:
        self._line, self._connect, self._path = line, connect, path
        self.silent = False
        self._timer = threading.Timer(SILENT_S, self._look)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        asked = self._connect(LOOK_S)
        try:
            asked.request("GET", self._path)
            asked.getresponse()
        except TimeoutError:
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

"""What is told of calls that run: their start and their output, also across a line that was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

Key: TypeAlias = tuple[str, int]
Move: TypeAlias = tuple[Key, Key]
"""Whose place was handed on, and to whom."""
Parts: TypeAlias = list[tuple[str, str]]

KEPT_CHARS = 200_000
"""Output of one call that is kept while nobody can be told; the rest is dropped, or it could fill our memory."""
BACKLOG_HIGH = 16 * 1024 * 1024
"""So many bytes wait to be sent that there is no room for output."""

_BYTES_PER_CHAR = 12  # JSON's longest escape of one character
_BYTES_PER_PART = 32
_FITS = CHUNK_BYTES - 4096


@dataclass(slots=True)
class Report:
    """What one call has reported so far."""

    started: tuple[float, str] | None = None
    chunks: int = 0
    dropped: int = 0
    kept: Parts = field(default_factory=list)
    kept_chars: int = 0


class Reporter:
    """Tells or keeps. ``backlog`` is None while there is no connection, else the bytes that wait to be sent."""

    def __init__(self, send: Callable[[str, dict[str, Any]], None], backlog: Callable[[], int | None]) -> None:
        self._send = send
        self._backlog = backlog
        self._behind: dict[int, tuple[Key, Report]] = {}
        """By the report's identity: members of a gang have one key and a report each."""

    def started(self, key: Key, report: Report, at: float, node: str) -> None:
        """A call was seen to run."""
        report.started = (at, node)
        self._send(m.STARTED, {"calls": [[*key, at, node]]})

    def output(self, key: Key, report: Report, parts: Parts) -> None:
        """A call printed something. It is told, kept until there is room, or counted as dropped."""
        report.chunks += 1
        if self._room() and not report.kept:
            self._tell(key, parts)
            return
        size = sum(len(text) for _, text in parts)
        if report.kept_chars + size > KEPT_CHARS:
            report.dropped += size
            return
        report.kept += parts
        report.kept_chars += size
        self._behind[id(report)] = key, report

    def drained(self) -> None:
        """Something was sent, so there may be room again."""
        for key, report in list(self._behind.values()):
            if not self._room():
                return
            self.flush(key, report)

    def catch_up(self, calls: Iterable[tuple[Key, Report]]) -> None:
        """After a reconnect: what these calls did meanwhile. A start may be told twice, but never not at all."""
        for key, report in calls:
            if report.started is not None:
                self._send(m.STARTED, {"calls": [[*key, *report.started]]})
            self.flush(key, report)

    def flush(self, key: Key, report: Report) -> None:
        """Tell what was kept."""
        self._behind.pop(id(report), None)
        kept, report.kept, report.kept_chars = report.kept, [], 0
        self._tell(key, kept)

    def _room(self) -> bool:
        backlog = self._backlog()
        return backlog is not None and backlog <= BACKLOG_HIGH

    def _tell(self, key: Key, parts: Parts) -> None:
        for some in fitting(parts):
            self._send(m.OUTPUT, {"id": key[0], "attempt": key[1], "parts": some})


def fitting(parts: Parts) -> Iterator[Parts]:
    """The same output in pieces that fit one frame each: larger messages could be overtaken by the result."""
    some: Parts = []
    room = _FITS
    for stream, whole in parts:
        text = whole
        while text:
            fits = max((room - _BYTES_PER_PART) // _BYTES_PER_CHAR, 0)
            if fits == 0:
                yield some
                some, room = [], _FITS
                continue
            piece, text = text[:fits], text[fits:]
            some.append((stream, piece))
            room -= _BYTES_PER_PART + len(piece) * _BYTES_PER_CHAR
    if some:
        yield some

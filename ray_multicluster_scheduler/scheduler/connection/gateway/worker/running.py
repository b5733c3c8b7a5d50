"""The call in progress on a worker, and what it has printed and nobody was told yet. Its channel keeps the lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Parts: TypeAlias = list[tuple[str, list[str]]]
"""Streams, and what was written to each, in order."""
MAX_UNSENT_CHARS = 1_000_000
UNFINISHED_LINE_S = 1.0
"""So long a member of a gang may take for the rest of a line before what there is of it is told: all members write to
one output, and print() writes the end of a line apart from the line."""


@dataclass(slots=True)
class Running:
    """As far as the channel's thread needs to know."""

    task_id: str
    attempt: int
    node_id: str
    started_at: float
    began: float
    reported: bool = False
    chunks: int = 0
    dropped: int = 0
    unsent: Parts = field(default_factory=list)
    unsent_chars: int = 0
    member: int | None = None
    unfinished_since: float | None = None
    """When the line that is held back was first seen without its end."""

    def start(self) -> dict[str, Any]:
        """What is told of its start."""
        told = {"id": self.task_id, "attempt": self.attempt, "at": self.started_at, "node": self.node_id}
        return told if self.member is None else {**told, "member": self.member}

    def write(self, stream: str, text: str) -> None:
        """Keep what it printed; what nobody takes is counted and dropped, newest first."""
        if self.unsent_chars + len(text) > MAX_UNSENT_CHARS:
            self.dropped += len(text)
            return
        if self.unsent and self.unsent[-1][0] == stream:
            self.unsent[-1][1].append(text)
        else:
            self.unsent.append((stream, [text]))
        self.unsent_chars += len(text)

    def take(self, now: float) -> Parts:
        """What is told now, as one chunk: all of it, but for the line that a member of a gang has just begun."""
        parts, begun = self._without_a_line_just_begun(now)
        self.unsent, self.unsent_chars = begun, _chars(begun)
        self.chunks += bool(parts)
        return parts

    def put_back(self, parts: Parts) -> None:
        """They could not be told after all."""
        self.unsent = parts + self.unsent
        self.unsent_chars += _chars(parts)
        self.chunks -= 1

    def rest(self) -> list[tuple[str, str]]:
        """All that is left, to go with a result."""
        parts, self.unsent, self.unsent_chars = self.unsent, [], 0
        return joined(parts)

    def _without_a_line_just_begun(self, now: float) -> tuple[Parts, Parts]:
        parts = self.unsent
        if self.member is None or not parts:
            return parts, []
        stream, texts = parts[-1]
        whole, end, begun = "".join(texts).rpartition("\n")
        if end or self.unfinished_since is None:
            self.unfinished_since = now
        if not begun or now - self.unfinished_since >= UNFINISHED_LINE_S:
            self.unfinished_since = None
            return parts, []
        return parts[:-1] + ([(stream, [whole + end])] if end else []), [(stream, [begun])]


def joined(parts: Parts) -> list[tuple[str, str]]:
    """print() writes word by word; send what belongs together as one piece."""
    return [(stream, "".join(texts)) for stream, texts in parts]


def _chars(parts: Parts) -> int:
    return sum(len(text) for _, texts in parts for text in texts)

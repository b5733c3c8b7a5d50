"""Answers to calls of the process before ours that nobody has asked for yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import Key

_MOST = 10_000
_MOST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """One entry of FINISHED and its attachment; None where there was no room for that, so the agent has it alone."""

    head: dict[str, Any]
    payload: bytes | None


class OrphanedResults:
    """None of these is acknowledged: should we end, the next process is told of them again."""

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._answers: dict[Key, Answer] = {}
        self._bytes = 0

    def keep(self, key: Key, head: dict[str, Any], payload: Any) -> list[Key]:
        """Keep this answer. Returns whose answers were given up to make room: the oldest."""
        self.claim(key)  # it may come again
        given_up = []
        while len(self._answers) >= self._most:
            given_up.append(next(iter(self._answers)))
            self.claim(given_up[-1])
        room = self._bytes + len(payload) <= self._most_bytes
        self._answers[key] = Answer(head, bytes(payload) if room else None)
        self._bytes += len(payload) if room else 0
        return given_up

    def claim(self, key: Key) -> Answer | None:
        """Its answer, which is not kept here any more; None if there is none."""
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= len(answer.payload or b"")
        return answer

    def clear(self) -> list[Key]:
        """Give up all of them."""
        keys = list(self._answers)
        self._answers.clear()
        self._bytes = 0
        return keys

    def __len__(self) -> int:
        return len(self._answers)

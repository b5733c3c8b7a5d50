"""Output of tasks: per attempt, bounded, and readable while it grows; with a variant that is backed by the store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ray_multicluster_scheduler.common.exception import ResultLostError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.store import Store

MAX_CHARS = 1_000_000
MAX_TOTAL = 64 * 1024 * 1024
PIECE_COST = 100
"""Approximate overhead of a piece, in addition to its characters."""
GAP = "gap"
"""The stream name of a piece that stands for lost output of any stream."""

AttemptKey: TypeAlias = tuple[str, int]


class AttemptOutput:
    """The output of one attempt."""

    __slots__ = ("cost", "dropped", "parts", "saved_dropped", "saved_parts", "size")

    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []
        self.size = 0
        self.cost = 0
        self.dropped = 0
        self.saved_parts = self.saved_dropped = 0
        """How many parts, and how many dropped characters, the store has already."""


class OutputStore:
    """Output by attempt. Written on the loop, read from any thread.

    The total stays below ``max_total``: output of the attempts that closed first is evicted first, and only its size is
    remembered. If only open attempts are left, new output is counted and dropped.
    """

    def __init__(self, max_chars: int = MAX_CHARS, max_total: int = MAX_TOTAL) -> None:
        self._max_chars, self._max_total = max_chars, max_total
        self._changed = threading.Condition()
        self._outputs: dict[str, dict[int, AttemptOutput]] = {}
        self._closed: dict[tuple[str, int], bool] = {}
        self._lost: dict[str, dict[int, int]] = {}
        """Evicted characters of attempts that are not forgotten."""
        self._total = 0

    def write(self, task_id: str, attempt: int, stream: str, text: str) -> None:
        """Add a piece; above a limit it is counted and dropped."""
        with self._changed:
            output = self._outputs.setdefault(task_id, {}).setdefault(attempt, AttemptOutput())
            late = self._closed.pop((task_id, attempt), False)  # not evicted now: it must not make room for itself
            self._add(output, stream, text)
            if late:
                self._closed[task_id, attempt] = True

    def count_dropped(self, task_id: str, attempt: int, characters: int) -> None:
        """Count characters that were dropped before they got here."""
        with self._changed:
            self._outputs.setdefault(task_id, {}).setdefault(attempt, AttemptOutput()).dropped += characters

    def close(self, task_id: str, attempt: int) -> None:
        """Record that this attempt and the earlier ones have no more output."""
        with self._changed:
            for number in self._outputs.get(task_id, ()):
                if number <= attempt:
                    self._closed.setdefault((task_id, number), True)

    def forget(self, task_id: str) -> None:
        """Drop all output of an item."""
        with self._changed:
            for attempt in list(self._outputs.get(task_id, ())):
                self._drop(task_id, attempt)
            self._lost.pop(task_id, None)

    def wake(self) -> None:
        """Wake followers: their ``progress`` may have changed."""
        with self._changed:
            self._changed.notify_all()

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """The output (or one stream of it), with lines for dropped parts."""
        with self._changed:
            output = self._outputs.get(task_id, {}).get(attempt) or _NOTHING
            return as_text([*self._gap(task_id, attempt), *output.parts], output.dropped, stream)

    def follow(self, task_id: str, progress: Callable[[], tuple[int, bool]]) -> Iterator[str]:
        """Pieces as they come, from the newest attempt on, until the item has ended.

        ``progress`` returns the newest attempt and whether the item has ended; call :meth:`wake` after a change.
        """
        attempt, position = progress()[0], 0
        output: AttemptOutput | None = None  # held, so that its end can be read even if it is evicted while being read
        while True:
            with self._changed:
                while True:
                    newest, over = progress()
                    output = output or self._outputs.get(task_id, {}).get(attempt)
                    pieces = [text for _, text in output.parts[position:]] if output else []
                    if pieces or over or newest > attempt:
                        break
                    self._changed.wait()
                gap = [] if output else self._gap(task_id, attempt)
            position += len(pieces)
            yield from pieces
            if newest > attempt or over:
                yield from (text for _, text in gap)
            if newest > attempt:
                attempt, position, output = attempt + 1, 0, None
            elif over:
                return

    def _add(self, output: AttemptOutput, stream: str, text: str) -> None:
        cost = len(text) + PIECE_COST
        if output.size + len(text) > self._max_chars or not self._evict_for(cost):
            output.dropped += len(text)
            return
        output.parts.append((stream, text))
        output.size += len(text)
        output.cost += cost
        self._total += cost
        self._changed.notify_all()

    def _evict_for(self, cost: int) -> bool:
        while self._total + cost > self._max_total and self._closed:
            task_id, attempt = next(iter(self._closed))
            self._on_evicted(task_id, attempt, self._drop(task_id, attempt))
        return self._total + cost <= self._max_total

    def _on_evicted(self, task_id: str, attempt: int, output: AttemptOutput) -> None:
        """Called when the output of a closed attempt was dropped from memory."""
        self._lose(task_id, attempt, output.size + output.dropped)

    def _lose(self, task_id: str, attempt: int, characters: int) -> None:
        lost = self._lost.setdefault(task_id, {})
        lost[attempt] = lost.get(attempt, 0) + characters

    def _gap(self, task_id: str, attempt: int) -> list[tuple[str, str]]:
        lost = self._lost.get(task_id, {}).get(attempt, 0)
        return [gap(lost)] if lost else []

    def _drop(self, task_id: str, attempt: int) -> AttemptOutput:
        attempts = self._outputs[task_id]
        output = attempts.pop(attempt)
        self._total -= output.cost
        if not attempts:
            del self._outputs[task_id]
        self._closed.pop((task_id, attempt), None)
        return output


class StoredOutput(OutputStore):
    """Output of a service: recent output is in memory, all of it in the store, in documents of what came since the
    last.

    Evicted output is read from the store. What was not saved before its eviction is lost; a document counts it."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self.unsaved: dict[AttemptKey, None] = {}
        """Attempts with output that is not saved."""
        self._complete: set[AttemptKey] = set()
        """Attempts with complete output: what agents send again is ignored."""
        self._evicted: dict[str, set[int]] = {}
        """Attempts with output that is only in the store."""

    def write(self, task_id: str, attempt: int, stream: str, text: str) -> None:
        key = (task_id, attempt)
        if key not in self._complete:
            super().write(task_id, attempt, stream, text)
            self.unsaved[key] = None

    def count_dropped(self, task_id: str, attempt: int, characters: int) -> None:
        key = (task_id, attempt)
        if key not in self._complete:
            super().count_dropped(task_id, attempt, characters)
            self.unsaved[key] = None

    def forget(self, task_id: str) -> None:
        super().forget(task_id)
        self._complete = {key for key in self._complete if key[0] != task_id} if self._complete else self._complete
        self._evicted.pop(task_id, None)

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """The output in memory; empty for an evicted attempt."""
        return "" if attempt in self._evicted.get(task_id, ()) else super().text(task_id, attempt, stream)

    def take_unsaved(self, task_id: str, attempt: int) -> bytes | None:
        """A document of the output since the last call, for the caller to save; None if there is none."""
        self.unsaved.pop((task_id, attempt), None)
        with self._changed:
            parts, dropped = self._unsaved_of(task_id, attempt)
            self._lost.get(task_id, {}).pop(attempt, None)
            output = self._outputs.get(task_id, {}).get(attempt)
            if output is not None:
                output.saved_parts, output.saved_dropped = len(output.parts), output.dropped
        return json.dumps({"parts": parts, "dropped": dropped}).encode() if parts or dropped else None

    def _unsaved_of(self, task_id: str, attempt: int) -> tuple[list[tuple[str, str]], int]:
        """With the lock: unsaved pieces, and characters dropped since the last document."""
        parts, output = self._gap(task_id, attempt), self._outputs.get(task_id, {}).get(attempt)
        if output is None:
            return parts, 0
        return [*parts, *output.parts[output.saved_parts :]], output.dropped - output.saved_dropped

    def _on_evicted(self, task_id: str, attempt: int, output: AttemptOutput) -> None:
        self._evicted.setdefault(task_id, set()).add(attempt)
        lost = sum(len(text) for _, text in output.parts[output.saved_parts :]) + output.dropped - output.saved_dropped
        if lost:
            self._lose(task_id, attempt, lost)
            self.unsaved[task_id, attempt] = None

    def restore(self, task_id: str, attempt: int, *, complete: bool) -> None:
        """Read what the previous process saved of an attempt that has not ended. With ``complete`` that is all of it,
        and what its agent sends again is ignored. Call it before anything is written."""
        parts, dropped, _ = self._read(task_id, attempt)
        for stream, text in parts:
            super().write(task_id, attempt, stream, text)
        if dropped:
            super().count_dropped(task_id, attempt, dropped)
        self.take_unsaved(task_id, attempt)  # it is saved already
        if complete:
            self._complete.add((task_id, attempt))

    def read_text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """As :meth:`text`, from the store, of an attempt that has ended. Raises ResultLostError if it has expired."""
        parts, dropped, lost = self._read(task_id, attempt)
        if lost:
            raise ResultLostError(
                f"The output of attempt {attempt} of {task_id} has expired.",
                task_id=task_id,
                next_step="read output sooner, or keep it longer (keep_payloads_s)",
            )
        with self._changed:
            fresh, more = self._unsaved_of(task_id, attempt)
        return as_text([*parts, *fresh], dropped + more, stream)

    def _read(self, task_id: str, attempt: int) -> tuple[list[list[str]], int, bool]:
        parts: list[list[str]] = []
        dropped, lost = 0, False
        for digest in self._store.output(task_id, attempt):
            data = None if digest is None else self._store.blob(digest)
            if data is None:
                lost = True
                continue
            document: dict[str, Any] = json.loads(data)
            parts += document["parts"]
            dropped += int(document["dropped"])
        return parts, dropped, lost


_NOTHING = AttemptOutput()


def gap(characters: int) -> tuple[str, str]:
    """A piece that stands for lost output."""
    return GAP, f"[{characters} characters of output were dropped here]\n"


def as_text(parts: Iterable[Sequence[str]], dropped: int, stream: str | None) -> str:
    """The output (or one stream of it) as text, with a last line if more was dropped."""
    text = "".join(part for name, part in parts if stream in (None, name) or name == GAP)
    return text + f"\n[{dropped} characters more were dropped]\n" if dropped else text

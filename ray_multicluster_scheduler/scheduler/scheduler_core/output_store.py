"""What tasks printed: bounded, per attempt, and to be followed while it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

MAX_CHARS = 1_000_000
MAX_TOTAL = 64 * 1024 * 1024
PIECE_COST = 100
"""What a piece costs besides its characters, roughly: a million single letters are not a megabyte."""


class _Output:
    __slots__ = ("cost", "dropped", "parts", "size", "told", "written")

    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []
        self.size = 0
        self.cost = 0
        self.dropped = 0
        self.written = 0
        """So many parts are kept elsewhere too, and so many characters are known there to be dropped."""
        self.told = 0


class OutputStore:
    """Output by attempt. Written on the loop, read from any thread.

    An attempt that prints nothing costs nothing. All together stay below ``max_total``: what was closed first goes
    first, and if only open ones are left, what they print on is counted, not kept.
    """

    def __init__(self, max_chars: int = MAX_CHARS, max_total: int = MAX_TOTAL) -> None:
        self._max_chars, self._max_total = max_chars, max_total
        self._changed = threading.Condition()
        self._outputs: dict[str, dict[int, _Output]] = {}
        self._closed: dict[tuple[str, int], bool] = {}
        self._total = 0

    def write(self, task_id: str, attempt: int, stream: str, text: str) -> None:
        """Add a piece; what is over a limit is counted, not kept."""
        with self._changed:
            output = self._outputs.setdefault(task_id, {}).setdefault(attempt, _Output())
            late = self._closed.pop((task_id, attempt), False)  # kept for now: it must not make room for itself
            self._add(output, stream, text)
            if late:
                self._closed[task_id, attempt] = True

    def count_dropped(self, task_id: str, attempt: int, characters: int) -> None:
        """So much was printed and dropped before it got here."""
        with self._changed:
            self._outputs.setdefault(task_id, {}).setdefault(attempt, _Output()).dropped += characters

    def close(self, task_id: str, attempt: int) -> None:
        """This attempt and those before it print no more."""
        with self._changed:
            for number in self._outputs.get(task_id, ()):
                if number <= attempt:
                    self._closed.setdefault((task_id, number), True)

    def forget(self, task_id: str) -> None:
        """Drop all of its output."""
        with self._changed:
            for attempt in list(self._outputs.get(task_id, ())):
                self._drop(task_id, attempt)

    def wake(self) -> None:
        """What followers ask about may have changed."""
        with self._changed:
            self._changed.notify_all()

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """All of it (or of one stream), with a line that says how much was dropped."""
        with self._changed:
            output = self._outputs.get(task_id, {}).get(attempt)
            if output is None:
                return ""
            return as_text(output.parts, output.dropped, stream)

    def follow(self, task_id: str, progress: Callable[[], tuple[int, bool]]) -> Iterator[str]:
        """Pieces as they come, from the newest attempt on, until the item is over.

        ``progress`` says which attempt is the newest and whether the item is over; :meth:`wake` after a change.
        """
        attempt, position = progress()[0], 0
        output: _Output | None = None  # held, so that its end can be read also when it was pushed out meanwhile
        while True:
            with self._changed:
                while True:
                    newest, over = progress()
                    output = output or self._outputs.get(task_id, {}).get(attempt)
                    pieces = [text for _, text in output.parts[position:]] if output else []
                    if pieces or over or newest > attempt:
                        break
                    self._changed.wait()
            position += len(pieces)
            yield from pieces
            if newest > attempt:
                attempt, position, output = attempt + 1, 0, None
            elif over:
                return

    def _add(self, output: _Output, stream: str, text: str) -> None:
        cost = len(text) + PIECE_COST
        if output.size + len(text) > self._max_chars or not self._make_room(cost):
            output.dropped += len(text)
            return
        output.parts.append((stream, text))
        output.size += len(text)
        output.cost += cost
        self._total += cost
        self._changed.notify_all()

    def _make_room(self, cost: int) -> bool:
        while self._total + cost > self._max_total and self._closed:
            self._drop(*next(iter(self._closed)))
        return self._total + cost <= self._max_total

    def _drop(self, task_id: str, attempt: int) -> None:
        attempts = self._outputs[task_id]
        self._total -= attempts.pop(attempt).cost
        if not attempts:
            del self._outputs[task_id]
        self._closed.pop((task_id, attempt), None)


def as_text(parts: Iterable[Sequence[str]], dropped: int, stream: str | None) -> str:
    """What was printed (or one stream of it), with a line that says how much was dropped."""
    text = "".join(part for name, part in parts if stream in (None, name))
    return text + f"\n[{dropped} characters more were dropped]\n" if dropped else text

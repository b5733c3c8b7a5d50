"""What tasks printed: bounded, per attempt, and to be followed while it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

MAX_CHARS = 1_000_000
MAX_TOTAL = 64 * 1024 * 1024
PIECE_COST = 100
"""What a piece costs besides its characters, roughly: a million single letters are not a megabyte."""
GAP = "gap"
"""The stream of a piece that stands for others that are lost; it belongs to each."""


class Output:
    """Of one attempt."""

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
    first, of which only its size is remembered; and if only open ones are left, what they print on is counted, not
    kept.
    """

    def __init__(self, max_chars: int = MAX_CHARS, max_total: int = MAX_TOTAL) -> None:
        self._max_chars, self._max_total = max_chars, max_total
        self._changed = threading.Condition()
        self._outputs: dict[str, dict[int, Output]] = {}
        self._closed: dict[tuple[str, int], bool] = {}
        self._lost: dict[str, dict[int, int]] = {}
        """How much was pushed out, of attempts that are not forgotten."""
        self._total = 0

    def write(self, task_id: str, attempt: int, stream: str, text: str) -> None:
        """Add a piece; what is over a limit is counted, not kept."""
        with self._changed:
            output = self._outputs.setdefault(task_id, {}).setdefault(attempt, Output())
            late = self._closed.pop((task_id, attempt), False)  # kept for now: it must not make room for itself
            self._add(output, stream, text)
            if late:
                self._closed[task_id, attempt] = True

    def count_dropped(self, task_id: str, attempt: int, characters: int) -> None:
        """So much was printed and dropped before it got here."""
        with self._changed:
            self._outputs.setdefault(task_id, {}).setdefault(attempt, Output()).dropped += characters

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
            self._lost.pop(task_id, None)

    def wake(self) -> None:
        """What followers ask about may have changed."""
        with self._changed:
            self._changed.notify_all()

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """All of it (or of one stream), with lines that say how much was dropped."""
        with self._changed:
            output = self._outputs.get(task_id, {}).get(attempt) or _NOTHING
            return as_text([*self._gap(task_id, attempt), *output.parts], output.dropped, stream)

    def follow(self, task_id: str, progress: Callable[[], tuple[int, bool]]) -> Iterator[str]:
        """Pieces as they come, from the newest attempt on, until the item is over.

        ``progress`` says which attempt is the newest and whether the item is over; :meth:`wake` after a change.
        """
        attempt, position = progress()[0], 0
        output: Output | None = None  # held, so that its end can be read also when it was pushed out meanwhile
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

    def _add(self, output: Output, stream: str, text: str) -> None:
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
            task_id, attempt = next(iter(self._closed))
            self._pushed_out(task_id, attempt, self._drop(task_id, attempt))
        return self._total + cost <= self._max_total

    def _pushed_out(self, task_id: str, attempt: int, output: Output) -> None:
        """It is nowhere any more."""
        self._lose(task_id, attempt, output.size + output.dropped)

    def _lose(self, task_id: str, attempt: int, characters: int) -> None:
        lost = self._lost.setdefault(task_id, {})
        lost[attempt] = lost.get(attempt, 0) + characters

    def _gap(self, task_id: str, attempt: int) -> list[tuple[str, str]]:
        lost = self._lost.get(task_id, {}).get(attempt, 0)
        return [gap(lost)] if lost else []

    def _drop(self, task_id: str, attempt: int) -> Output:
        attempts = self._outputs[task_id]
        output = attempts.pop(attempt)
        self._total -= output.cost
        if not attempts:
            del self._outputs[task_id]
        self._closed.pop((task_id, attempt), None)
        return output


_NOTHING = Output()


def gap(characters: int) -> tuple[str, str]:
    """A piece that stands for so much that is lost."""
    return GAP, f"[{characters} characters of output were dropped here]\n"


def as_text(parts: Iterable[Sequence[str]], dropped: int, stream: str | None) -> str:
    """What was printed (or one stream of it), with a line that says how much was dropped."""
    text = "".join(part for name, part in parts if stream in (None, name) or name == GAP)
    return text + f"\n[{dropped} characters more were dropped]\n" if dropped else text

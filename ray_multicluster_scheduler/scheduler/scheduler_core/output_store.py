"""What tasks printed: bounded, per attempt, and to be followed while it comes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

MAX_CHARS = 1_000_000
MAX_ITEMS = 10_000


class _Output:
    __slots__ = ("closed", "dropped", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []
        self.size = 0
        self.dropped = 0
        self.closed = False


class OutputStore:
    """Output of the newest attempts. Written on the loop, read from any thread."""

    def __init__(self, max_chars: int = MAX_CHARS, max_items: int = MAX_ITEMS) -> None:
        self._max_chars, self._max_items = max_chars, max_items
        self._changed = threading.Condition()
        self._outputs: OrderedDict[tuple[str, int], _Output] = OrderedDict()

    def write(self, task_id: str, attempt: int, stream: str, text: str) -> None:
        """Add a piece; what is over the limit is counted, not kept."""
        with self._changed:
            output = self._output(task_id, attempt)
            if output.size + len(text) > self._max_chars:
                output.dropped += len(text)
                return
            output.parts.append((stream, text))
            output.size += len(text)
            self._changed.notify_all()

    def close(self, task_id: str, attempt: int) -> None:
        """This attempt prints no more."""
        with self._changed:
            self._output(task_id, attempt).closed = True  # also when it printed nothing, or followers would wait
            self._changed.notify_all()

    def text(self, task_id: str, attempt: int, stream: str | None = None) -> str:
        """All of it (or of one stream), with a line that says how much was dropped."""
        with self._changed:
            output = self._outputs.get((task_id, attempt))
            if output is None:
                return ""
            text = "".join(part for name, part in output.parts if stream in (None, name))
            if output.dropped:
                text += f"\n[{output.dropped} characters more were dropped]\n"
            return text

    def follow(self, task_id: str, attempt: int) -> Iterator[str]:
        """Pieces as they come, until the attempt is over."""
        position = 0
        with self._changed:
            output = self._output(task_id, attempt)
        while True:
            with self._changed:
                while not output.closed and len(output.parts) <= position:
                    self._changed.wait()
                pieces = [text for _, text in output.parts[position:]]
                position += len(pieces)
                closed = output.closed
            yield from pieces
            if closed:
                return

    def _output(self, task_id: str, attempt: int) -> _Output:
        key = (task_id, attempt)
        output = self._outputs.get(key)
        if output is None:
            output = self._outputs[key] = _Output()
            while len(self._outputs) > self._max_items:
                _, oldest = self._outputs.popitem(last=False)
                oldest.closed = True
                self._changed.notify_all()
        return output

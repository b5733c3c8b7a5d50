"""Reads the input of a map on its own thread, so that a slow input does not block the map."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class InputReader:
    """Buffers at most as many rows as were requested with :meth:`want`. ``notify`` must not block; it is called for the
    first buffered row, when the request is fulfilled, and at the end of the input."""

    def __init__(self, source: Iterator[Any], notify: Callable[[], object]) -> None:
        self._source, self._notify = source, notify
        self._rows: deque[Any] = deque()
        self._wanted = 0
        self._stopped = False
        self._requests = threading.Semaphore(0)
        self.ended = False
        """No row follows the buffered ones; set after the last row was buffered."""
        self.error: BaseException | None = None
        """The exception that ended the input."""
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="rmcs-map-input", daemon=True).start()

    def __len__(self) -> int:
        return len(self._rows)

    def want(self, count: int) -> None:
        """Request that so many rows be buffered."""
        self._wanted = count
        self._requests.release()

    def take(self, count: int) -> list[Any]:
        """Return at most so many buffered rows. Reading pauses until the next :meth:`want`."""
        self._wanted = 0  # first, or the reader would refill the buffer
        return [self._rows.popleft() for _ in range(min(count, len(self._rows)))]

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True
        self._requests.release()

    def _run(self) -> None:
        while not self.ended:
            self._requests.acquire()
            try:
                self._read()
            except StopIteration:
                self.ended = True
            except BaseException as error:  # noqa: BLE001 - raised to the reader after the rows before it
                self.error = error
                self.ended = True
            self._notify()
            if self._stopped:
                return

    def _read(self) -> None:
        while len(self._rows) < self._wanted and not self._stopped:
            row = next(self._source)
            first = not self._rows
            self._rows.append(row)
            if first:
                self._notify()

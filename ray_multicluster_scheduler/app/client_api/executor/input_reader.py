"""Reads the input of a map on a thread of its own: an input that makes us wait holds up nothing else."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class InputReader:
    """Never reads further than it was asked to; after a take, only what is on its way still comes. ``tell`` must not
    block; it is called when there is a first row, when there are as many as were asked for, and at the end of the
    input."""

    def __init__(self, source: Iterator[Any], tell: Callable[[], object]) -> None:
        self._source, self._tell = source, tell
        self._rows: deque[Any] = deque()
        self._wanted = 0
        self._stopped = False
        self._asked = threading.Semaphore(0)
        self.ended = False
        """Nothing comes after what is there; written after the last row."""
        self.error: BaseException | None = None
        """What the input raised instead of its end."""
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="rmcs-map-input", daemon=True).start()

    def __len__(self) -> int:
        return len(self._rows)

    def want(self, count: int) -> None:
        """Have so many rows ready."""
        self._wanted = count
        self._asked.release()

    def take(self, count: int) -> list[Any]:
        """At most so many of those that are ready. No more are read before the next :meth:`want`."""
        self._wanted = 0  # before they leave, or the reader would make up for them
        return [self._rows.popleft() for _ in range(min(count, len(self._rows)))]

    def stop(self) -> None:
        """Read no further."""
        self._stopped = True
        self._asked.release()

    def _run(self) -> None:
        while not self.ended:
            self._asked.acquire()
            try:
                self._read()
            except StopIteration:
                self.ended = True
            except BaseException as error:  # noqa: BLE001 - of the user's input; he hears of it when its turn comes
                self.error = error
                self.ended = True
            self._tell()
            if self._stopped:
                return

    def _read(self) -> None:
        while len(self._rows) < self._wanted and not self._stopped:
            row = next(self._source)
            first = not self._rows
            self._rows.append(row)
            if first:
                self._tell()

"""Clock: the time source that components take as a parameter, so that tests and the simulator can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the time in seconds since the epoch."""

    def now(self) -> float: ...


class SystemClock:
    """Wall time that never runs backwards within one process."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset + time.monotonic()

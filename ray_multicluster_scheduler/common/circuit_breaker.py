"""CircuitBreaker: stop giving work to a cluster that keeps failing, and try it again later with a probe."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class BreakerState(StrEnum):
    """CLOSED takes work; OPEN does not; HALF_OPEN takes a probe, never a user's work."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class CircuitBreaker:
    """CLOSED → OPEN after ``failures`` in a row → HALF_OPEN after ``recovery_s`` → CLOSED or OPEN again.

    Time is always passed in. Opening and closing depend on nothing else, so a replay gives the same states.
    """

    def __init__(self, failures: int, recovery_s: float, on_change: Callable[[], None] = lambda: None) -> None:
        self._changed = on_change
        self._limit = failures
        self._recovery_s = recovery_s
        self._in_a_row = self._silences = 0
        self._opened_at: float | None = None
        self._last_failure = ""

    @property
    def failures_in_a_row(self) -> int:
        return self._in_a_row

    @property
    def last_failure(self) -> str:
        """What failed last, in words that go on after "the last time,"; empty where nobody said."""
        return self._last_failure

    @property
    def half_open_at(self) -> float | None:
        """When a probe may be sent; None while closed."""
        return None if self._opened_at is None else self._opened_at + self._recovery_s

    def state(self, now: float) -> BreakerState:
        half_open_at = self.half_open_at
        if half_open_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= half_open_at else BreakerState.OPEN

    def record_failure(self, now: float, what: str = "", *, silence: bool = False) -> None:
        """A failure of the cluster itself: ``what`` failed. While half open, one is enough to open it again.

        ``silence``: it was asked and did not answer, which :meth:`record_answer` takes back.
        """
        self._changed()
        self._in_a_row += 1
        self._silences += silence
        self._last_failure = what
        if self.state(now) is BreakerState.HALF_OPEN or (self._opened_at is None and self._in_a_row >= self._limit):
            self._opened_at = now

    def record_success(self) -> None:
        """Work that went well: failures are no longer in a row. Does not close an open breaker."""
        if self._opened_at is None:
            self._changed()
            self._in_a_row = self._silences = 0

    def record_answer(self) -> None:
        """It was asked and answers: that ends the row of silences, and says nothing of work that failed. Does not
        close an open breaker."""
        if self._opened_at is None and self._silences:
            self._changed()
            self._in_a_row -= self._silences
            self._silences = 0

    def record_probe(self, now: float) -> None:
        """A probe was answered: closes the breaker if its time for probing has come."""
        if self.state(now) is BreakerState.HALF_OPEN:
            self.close()

    def close(self) -> None:
        """By hand: somebody has seen that it is well, before its time for probing."""
        self._changed()
        self._opened_at = None
        self._in_a_row = self._silences = 0

"""CircuitBreaker: stops sending work to a cluster that keeps failing, and tries it again later with a probe."""

from __future__ import annotations

from collections import deque
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
        self.failures_in_a_row = self._silences = 0
        self.recent_attempts: deque[bool] = deque(maxlen=2 * failures)
        """Of the latest attempts, whether the worker crashed. That never opens it, because user code may be the cause;
        `explain` mentions it."""
        self.last_failure = ""
        """The last failure, as the end of a sentence that begins with "the last time,"; empty if unknown."""
        self._opened_at: float | None = None

    @property
    def half_open_at(self) -> float | None:
        """The time from which a probe may be sent; None while closed."""
        return None if self._opened_at is None else self._opened_at + self._recovery_s

    def state(self, now: float) -> BreakerState:
        half_open_at = self.half_open_at
        if half_open_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= half_open_at else BreakerState.OPEN

    def record_failure(self, now: float, what: str = "", *, silence: bool = False) -> None:
        """Count a failure of the cluster itself: ``what`` failed. While half open, one failure opens it again.

        ``silence``: a request got no answer; :meth:`record_answer` subtracts these.
        """
        self._changed()
        self.failures_in_a_row += 1
        self._silences += silence
        self.last_failure = what
        reached = self._opened_at is None and self.failures_in_a_row >= self._limit
        if reached or self.state(now) is BreakerState.HALF_OPEN:
            self._opened_at = now

    def record_success(self) -> None:
        """Work succeeded: reset the count of failures. Does not close an open breaker."""
        if self._opened_at is None:
            self._changed()
            self.failures_in_a_row = self._silences = 0

    def record_answer(self) -> None:
        """A request was answered: subtract the silences, but not the failures of work. Does not close an open
        breaker."""
        if self._opened_at is None and self._silences:
            self._changed()
            self.failures_in_a_row -= self._silences
            self._silences = 0

    def record_probe(self, now: float) -> None:
        """A probe was answered: close the breaker if it is half open."""
        if self.state(now) is BreakerState.HALF_OPEN:
            self.close()

    def close(self) -> None:
        """Close it now, for an operator who has checked the cluster."""
        self._changed()
        self._opened_at = None
        self.failures_in_a_row = self._silences = 0

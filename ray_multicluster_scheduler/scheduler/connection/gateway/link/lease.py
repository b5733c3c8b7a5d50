"""For how long the control plane still counts on this agent."""

from __future__ import annotations

import math
import time


class Lease:
    """Runs from the moment when *we asked*, once an answer came; when the answer arrived does not matter.

    Bytes may wait in a kernel or a proxy until long after the control plane gave this agent up. The question
    that was answered cannot be younger than the answer, so the control plane's own count ends later than this.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._asked_at = time.monotonic()
        self._away_s = 0.0

    @property
    def until(self) -> float:
        """On the clock of ``time.monotonic``."""
        return self._asked_at + self.whole_s

    def answered(self, asked_at: object) -> None:
        """The control plane answered what we asked then. What is no time of ours is ignored."""
        if isinstance(asked_at, float) and asked_at <= time.monotonic():
            self._asked_at = max(self._asked_at, asked_at)

    def away(self, seconds: float) -> None:
        """The control plane will not answer for so long, and still counts on us: that much longer than it would."""
        self._away_s = max(seconds, 0.0) if math.isfinite(seconds) else 0.0

    @property
    def whole_s(self) -> float:
        """All of it, from a question that was answered."""
        return self.seconds + self._away_s

    def back(self, asked_at: float) -> None:
        """It answered over a new connection."""
        self._away_s = 0.0
        self.answered(asked_at)

    def grant_s(self) -> float:
        """What a worker may be given. It asks again all the time, so it never needs more than the usual: one that has
        lost its agent ends as soon as ever, however long the control plane is away."""
        return min(self.left_s(), self.seconds)

    def left_s(self) -> float:
        """Negative when it is over."""
        return self.until - time.monotonic()

"""BaseStrategy: how an instance is chosen for a request; Candidate and Choice: what it chooses from, and its answer."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ray_multicluster_scheduler.serving.predictor import Prediction

NEAR_EQUAL = 0.01
"""Scores that differ by this part of the lowest one or less are equal, and one of them is chosen at random."""


class RequestView(Protocol):
    """What a strategy may see of a request."""

    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class Candidate:
    """An instance that could serve the request now."""

    instance: str
    """Its UUID."""
    length: int
    """Tasks that are charged there."""
    running: int
    concurrency: int
    weight: float
    backlog_ms: float
    """Expected remaining time of everything that is charged there, one after another."""
    backlog_variance: float
    """In ms²."""
    prediction: Prediction | None
    """The request's own time there; None if nothing is known."""

    @property
    def wait_ms(self) -> float:
        """Expected time until the request could begin: the backlog is served by ``concurrency`` slots."""
        return self.backlog_ms / self.concurrency

    @property
    def finish_ms(self) -> float:
        """Expected time until the request is finished."""
        return self.wait_ms + (self.prediction.mean_ms if self.prediction else 0.0)

    @property
    def finish_std_ms(self) -> float:
        """Standard deviation of :attr:`finish_ms`."""
        own = self.prediction.std_ms if self.prediction else 0.0
        return math.sqrt(self.backlog_variance / self.concurrency**2 + own * own)


@dataclass(frozen=True, slots=True)
class Choice:
    """The UUID of the chosen instance, and why."""

    instance: str
    reason: str


class BaseStrategy(ABC):
    """Chooses an instance for each request. Called under the scheduler's lock, so it must be fast and do no I/O."""

    name: str = "custom"
    """By which `set_strategy`, configurations and `POST /scheduler/set` know it."""
    moves_waiting: ClassVar[bool] = True
    """Whether a request that waits at one instance moves to another that could begin it earlier."""

    @abstractmethod
    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        """Choose one of the candidates; there is at least one."""


def lowest(candidates: Sequence[Candidate], score: Callable[[Candidate], float]) -> tuple[Candidate, float]:
    """The candidate with the lowest score, and that score; one at random of those that are near-equal."""
    scores = [score(one) for one in candidates]
    best = min(scores)
    limit = best + abs(best) * NEAR_EQUAL
    nearest = [index for index, value in enumerate(scores) if value <= limit]
    index = nearest[0] if len(nearest) == 1 else random.choice(nearest)  # nosec B311 # balances load
    return candidates[index], scores[index]


def shortest(candidates: Sequence[Candidate]) -> Choice:
    """Join the shortest queue: the fewest tasks for each slot. Used where no time is predicted."""
    chosen, load = lowest(candidates, lambda one: one.length / one.concurrency)
    return Choice(chosen.instance, f"fewest tasks for each slot: {load:g}")

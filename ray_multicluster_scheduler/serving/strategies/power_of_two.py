"""PowerOfTwoStrategy: the better one of two random instances."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ray_multicluster_scheduler.serving.strategies.base import BaseStrategy, Candidate, Choice, RequestView, shortest
from ray_multicluster_scheduler.serving.strategies.shortest_queue import ShortestQueueStrategy


class PowerOfTwoStrategy(BaseStrategy):
    """Draws two instances and chooses the one that is expected to finish first, or that has fewer tasks if no time is
    predicted. Routers that do not know of each other's requests do not all choose the same instance this way."""

    name = "power_of_two"

    def __init__(self) -> None:
        self._expected = ShortestQueueStrategy()

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        drawn = random.sample(candidates, min(2, len(candidates)))  # nosec B311 # balances load
        if any(one.prediction is None for one in drawn):
            return shortest(drawn)
        return self._expected.select(drawn, task)

"""RoundRobinStrategy: instances take turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ray_multicluster_scheduler.serving.strategies.base import BaseStrategy, Candidate, Choice, RequestView


class RoundRobinStrategy(BaseStrategy):
    """The instance of the model whose last turn is longest ago."""

    name = "round_robin"
    moves_waiting = False

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[str, int] = {}

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        self._turn += 1
        chosen = min(candidates, key=lambda one: (self._last.get(one.instance, 0), random.random()))  # nosec B311
        self._last[chosen.instance] = self._turn
        if len(self._last) > 10 * len(candidates) + 1000:  # instances that are gone
            known = {one.instance for one in candidates}
            self._last = {instance: turn for instance, turn in self._last.items() if instance in known}
        return Choice(chosen.instance, "its turn")

"""WeightedStrategy: a random instance, in proportion to the weights of the instances."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ray_multicluster_scheduler.serving.strategies.base import BaseStrategy, Candidate, Choice, RequestView


class WeightedStrategy(BaseStrategy):
    """Each instance gets the share of requests that its ``weight`` is of the sum of weights."""

    name = "weighted"
    moves_waiting = False

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        weights = [one.weight for one in candidates]
        chosen = random.choices(candidates, weights)[0]  # nosec B311 # balances load
        return Choice(chosen.instance, f"drawn with weight {chosen.weight:g} of {sum(weights):g}")

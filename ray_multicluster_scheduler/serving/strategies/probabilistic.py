"""ProbabilisticStrategy: the instance with the highest probability of finishing the request first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from ray_multicluster_scheduler.serving.strategies.base import (
    BaseStrategy,
    Candidate,
    Choice,
    RequestView,
    lowest,
    shortest,
)

_STEPS = 32


class ProbabilisticStrategy(BaseStrategy):
    """The completion time of each instance is taken as lognormal; the probability that it is the earliest is integrated
    over 32 quantiles of its distribution."""

    name = "probabilistic"

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        if any(one.prediction is None for one in candidates):
            return shortest(candidates)
        shapes = [_lognormal(one.finish_ms, one.finish_std_ms) for one in candidates]
        chances = {one.instance: _first(index, shapes) for index, one in enumerate(candidates)}
        chosen, _ = lowest(candidates, lambda one: -chances[one.instance])
        return Choice(chosen.instance, f"finishes first with a probability of {chances[chosen.instance]:.2f}")


def _lognormal(mean: float, std: float) -> tuple[float, float]:
    """Parameters of a lognormal distribution with this mean and standard deviation."""
    mean = max(mean, 1e-3)
    spread = math.log1p(max(std / mean, 1e-2) ** 2)
    return math.log(mean) - spread / 2, math.sqrt(spread)


def _first(index: int, shapes: Sequence[tuple[float, float]]) -> float:
    """P(this one is before all others)."""
    middle, sigma = shapes[index]
    total = 0.0
    for z in _QUANTILES:
        at = middle + sigma * z
        chance = 1.0
        for other, (other_middle, other_sigma) in enumerate(shapes):
            if other != index:
                chance *= 0.5 * math.erfc((at - other_middle) / other_sigma / math.sqrt(2))
        total += chance
    return total / _STEPS


_QUANTILES = tuple(NormalDist().inv_cdf((step + 0.5) / _STEPS) for step in range(_STEPS))

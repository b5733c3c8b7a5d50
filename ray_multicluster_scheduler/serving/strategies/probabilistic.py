"""ProbabilisticStrategy: the instance with the highest probability of finishing the request first."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from ray_multicluster_scheduler.serving.strategies.base import (
    BaseStrategy,
    Candidate,
    Choice,
    RequestView,
    lowest,
    shortest,
)

_MAX_COMPARED = 32
"""Candidates whose probabilities are computed: those with the earliest possible times."""
_PLACES = (-4.0, -2.5, -1.5, -0.8, -0.25, 0.25, 0.8, 1.5, 2.5, 4.0)
"""Standard deviations around the middle of the six earliest distributions, at which all are evaluated."""


class ProbabilisticStrategy(BaseStrategy):
    """The completion time of each instance is taken as lognormal. In each step of time, the probability that the first
    one finishes is shared in proportion to the hazards of the instances."""

    name = "probabilistic"

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        if any(one.prediction is None for one in candidates):
            return shortest(candidates)
        shaped = [(one, *_lognormal(one.finish_ms, one.finish_std_ms)) for one in candidates]
        if len(shaped) > _MAX_COMPARED:
            random.shuffle(shaped)  # nosec B311 # equal ones take turns
            shaped = sorted(shaped, key=lambda row: row[1] - row[2])[:_MAX_COMPARED]
        shapes = [(middle, sigma) for _, middle, sigma in shaped]
        chances = {row[0].instance: chance for row, chance in zip(shaped, first_probabilities(shapes), strict=True)}
        chosen, _ = lowest([row[0] for row in shaped], lambda one: -chances[one.instance])
        return Choice(chosen.instance, f"finishes first with a probability of {chances[chosen.instance]:.2f}")


def _lognormal(mean: float, std: float) -> tuple[float, float]:
    """Parameters of a lognormal distribution with this mean and standard deviation."""
    mean = max(mean, 1e-3)
    spread = math.log1p(max(std / mean, 1e-2) ** 2)
    return math.log(mean) - spread / 2, math.sqrt(spread)


def first_probabilities(shapes: Sequence[tuple[float, float]]) -> list[float]:
    """For each lognormal distribution, the probability that it is before all others; linear in their number."""
    end = min(middle + _PLACES[-1] * sigma for middle, sigma in shapes)  # until then one has finished
    earliest = sorted(shapes)[:6]
    times = sorted({time for middle, sigma in earliest for z in _PLACES if (time := middle + z * sigma) <= end})
    # minus the logarithm of the probability that it takes longer, at each time
    hazards = [[_hazard((time - middle) / sigma) for time in times] for middle, sigma in shapes]
    chances = [0.0] * len(shapes)
    before, total_before, none_before = [0.0] * len(shapes), 0.0, 1.0
    for now in zip(*hazards, strict=True):
        total = sum(now)
        none = math.exp(-total)
        if total > total_before:
            share = (none_before - none) / (total - total_before)
            chances = [chance + share * (a - b) for chance, a, b in zip(chances, now, before, strict=True)]
        before, total_before, none_before = list(now), total, none
    return chances


def _hazard(z: float) -> float:
    return -math.log(0.5 * math.erfc(z / _SQRT_2))


_SQRT_2 = math.sqrt(2)

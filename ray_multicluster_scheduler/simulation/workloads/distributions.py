"""Named distributions: how items arrive, and how long they run. Each is written ``name`` or ``name:number,number``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.simulation.node_text import parse_time

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Named:
    """One entry of a table: what its numbers are, the least and the most of them, and what it does."""

    numbers: str
    least: int
    most: int
    make: Callable[..., Callable[[Random], float]]


def _constant(value: float) -> Callable[[Random], float]:
    return lambda _: value


def _uniform(low: float, high: float) -> Callable[[Random], float]:
    return lambda chance: chance.uniform(low, high)


def _exponential(mean: float) -> Callable[[Random], float]:
    return lambda chance: chance.expovariate(1.0 / mean)


def _lognormal(median: float, sigma: float = 1.0) -> Callable[[Random], float]:
    return lambda chance: chance.lognormvariate(math.log(median), sigma)


def _pareto(least: float, alpha: float = 1.5, most: float = math.inf) -> Callable[[Random], float]:
    return lambda chance: min(most, least * chance.paretovariate(alpha))


RUN_TIMES: dict[str, Named] = {
    "constant": Named("seconds", 1, 1, _constant),
    "uniform": Named("least,most", 2, 2, _uniform),
    "exponential": Named("mean", 1, 1, _exponential),
    "lognormal": Named("median[,sigma]", 1, 2, _lognormal),
    "pareto": Named("least[,alpha[,most]]", 1, 3, _pareto),
}


def run_times(text: str) -> Callable[[Random], float]:
    """What ``lognormal:60,1.2`` means. Raises ConfigurationError."""
    name, numbers = _split(text)
    named = RUN_TIMES.get(name)
    if named is None:
        raise _unknown("run", name, RUN_TIMES)
    if not named.least <= len(numbers) <= named.most:
        raise ConfigurationError(
            f"run={text}: {name} takes {named.numbers}.", next_step=f"write run={name}:{named.numbers}, in seconds"
        )
    if any(number <= 0 for number in numbers) or (name == "uniform" and numbers[0] > numbers[1]):
        raise ConfigurationError(f"run={text} is not a run time.", next_step="give numbers above 0, the least first")
    return named.make(*numbers)


def _poisson(count: int, over_s: float, chance: Random, _: float) -> list[float]:
    """Independent of each other, at the same rate all the time."""
    at, times = 0.0, []
    for _number in range(count):
        at += chance.expovariate(count / over_s)
        times.append(at)
    return times


def _evenly(count: int, over_s: float, _chance: Random, _: float) -> list[float]:
    """The same time between any two."""
    return [over_s * number / count for number in range(count)]


def _bursts(count: int, over_s: float, _chance: Random, bursts: float) -> list[float]:
    """All at a few moments, evenly spaced."""
    number_of = max(1, int(bursts))
    return [over_s * (number * number_of // count) / number_of for number in range(count)]


def _daily(count: int, over_s: float, chance: Random, swing: float) -> list[float]:
    """More by day than by night: the rate swings around its mean by this share, highest at noon of each day."""
    times: list[float] = []
    while len(times) < count:
        at = chance.uniform(0.0, over_s)
        if chance.uniform(0.0, 1.0 + swing) <= 1.0 - swing * math.cos(2.0 * math.pi * at / DAY_S):
            times.append(at)
    return sorted(times)


ARRIVALS: dict[str, tuple[Callable[[int, float, Random, float], list[float]], float | None]] = {
    "poisson": (_poisson, None),
    "uniform": (_evenly, None),
    "bursts": (_bursts, 10.0),
    "daily": (_daily, 0.8),
}
"""What each does, and its one number if it has one."""


def arrivals(text: str) -> Callable[[int, float, Random], list[float]]:
    """What ``bursts:12`` means: times of so many items within so many seconds. Raises ConfigurationError."""
    name, numbers = _split(text)
    if name not in ARRIVALS:
        raise _unknown("arrivals", name, ARRIVALS)
    process, usual = ARRIVALS[name]
    if len(numbers) > (usual is not None):
        raise ConfigurationError(
            f"arrivals={text}: {name} takes {'no number' if usual is None else 'one number'}.",
            next_step="write arrivals=poisson, uniform, bursts:10 or daily:0.8",
        )
    number = numbers[0] if numbers else usual or 0.0
    if (name == "bursts" and number < 1) or (name == "daily" and not 0 <= number <= 1):
        raise ConfigurationError(
            f"arrivals={text} cannot be.", next_step="give at least one burst, or a daily swing from 0 to 1"
        )
    return lambda count, over_s, chance: process(count, over_s, chance, number)


def _split(text: str) -> tuple[str, list[float]]:
    name, _, rest = text.partition(":")
    return name.strip(), [parse_time(part) for part in rest.split(",")] if rest else []


def _unknown(key: str, name: str, known: Iterable[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{key}={name}: there is no such distribution.", next_step=f"use one of: {', '.join(known)}"
    )

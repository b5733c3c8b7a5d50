"""Strategies that choose an instance for each request, one small file each, and their registry.

Own strategies are registered by ``register_strategy``, or by the entry point
``ray_multicluster_scheduler.serving_strategies`` of an installed package. Start with ``base.py``. Only ``serving`` and
modules with strategies of their own import it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.serving.strategies.base import BaseStrategy, Candidate, Choice
from ray_multicluster_scheduler.serving.strategies.join_shortest_queue import JoinShortestQueueStrategy
from ray_multicluster_scheduler.serving.strategies.power_of_two import PowerOfTwoStrategy
from ray_multicluster_scheduler.serving.strategies.probabilistic import ProbabilisticStrategy
from ray_multicluster_scheduler.serving.strategies.round_robin import RoundRobinStrategy
from ray_multicluster_scheduler.serving.strategies.shortest_queue import ShortestQueueStrategy
from ray_multicluster_scheduler.serving.strategies.weighted import WeightedStrategy

__all__ = [
    "BaseStrategy",
    "Candidate",
    "Choice",
    "JoinShortestQueueStrategy",
    "PowerOfTwoStrategy",
    "ProbabilisticStrategy",
    "RoundRobinStrategy",
    "ShortestQueueStrategy",
    "WeightedStrategy",
    "create_strategy",
    "register_strategy",
    "strategy_names",
]

ENTRY_POINT = "ray_multicluster_scheduler.serving_strategies"
_registered: dict[str, Callable[..., BaseStrategy]] = {
    one.name: one
    for one in (
        RoundRobinStrategy,
        WeightedStrategy,
        ShortestQueueStrategy,
        ProbabilisticStrategy,
        PowerOfTwoStrategy,
        JoinShortestQueueStrategy,
    )
}


def register_strategy(name: str, factory: Callable[..., BaseStrategy]) -> None:
    """Make a strategy known by name; the factory (such as the class) is called for each scheduler or model that uses
    it. Raises ConfigurationError if the name is taken by another."""
    if _registered.setdefault(name, factory) is not factory:
        raise ConfigurationError(f"A serving strategy {name!r} is registered already.", next_step="choose another name")


def strategy_names() -> list[str]:
    return sorted({*_registered, *_installed()})


def create_strategy(name: str | BaseStrategy, **options: float) -> BaseStrategy:
    """A new strategy of this name, or the given one. Raises ConfigurationError if there is none, or it does not have
    these options."""
    if isinstance(name, BaseStrategy):
        return name
    if name not in _registered and name not in _installed():
        raise ConfigurationError(
            f"There is no serving strategy {name!r}.", next_step=f"use one of {', '.join(strategy_names())}"
        )
    try:
        strategy = (_registered[name] if name in _registered else _installed()[name].load())(**options)
    except Exception as error:
        sentence = f"The serving strategy {name!r} cannot be created: {type(error).__name__}: {error}."
        raise ConfigurationError(sentence, next_step="correct it, or use another one") from error
    if not isinstance(strategy, BaseStrategy):
        raise ConfigurationError(f"The serving strategy {name!r} is not a BaseStrategy but {type(strategy).__name__}.")
    strategy.name = name
    return strategy


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT)}

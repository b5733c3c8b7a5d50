from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.serving import BaseStrategy, Candidate, Choice, Prediction, register_strategy
from ray_multicluster_scheduler.serving import strategies as registry
from ray_multicluster_scheduler.serving.predictor import Predictor
from ray_multicluster_scheduler.serving.router.ledger import Instance, Task
from ray_multicluster_scheduler.serving.router.router import Router
from ray_multicluster_scheduler.serving.strategies import (
    ProbabilisticStrategy,
    create_strategy,
    probabilistic,
    strategy_names,
)
from ray_multicluster_scheduler.serving.strategies.base import RequestView
from ray_multicluster_scheduler.serving.strategies.probabilistic import first_probabilities

TASK = Task("t", "m", None, {}, {}, 0.0)


def candidate(name: str, backlog: float = 0.0, own: float | None = 10.0, **values: Any) -> Candidate:
    prediction = None if own is None else Prediction(own, values.pop("std", 1.0), source="instance")
    fields = {"length": 0, "running": 0, "concurrency": 1, "weight": 1.0, "backlog_variance": 1.0, **values}
    return Candidate(name, backlog_ms=backlog, prediction=prediction, **fields)


def chosen(strategy: str | BaseStrategy, *candidates: Candidate, times: int = 200) -> Counter[str]:
    one = create_strategy(strategy) if isinstance(strategy, str) else strategy
    return Counter(one.select(candidates, TASK).instance for _ in range(times))


@pytest.mark.parametrize("name", ["shortest_queue", "probabilistic", "power_of_two"])
def test_the_earliest_expected_end_wins_over_the_shortest_queue(name: str) -> None:
    fast, slow = candidate("fast", backlog=20, own=5, length=4), candidate("slow", backlog=0, own=100, length=0)
    assert chosen(name, fast, slow) == {"fast": 200}


@pytest.mark.parametrize("name", ["shortest_queue", "probabilistic", "power_of_two", "join_shortest_queue"])
def test_ties_are_broken_at_random(name: str) -> None:
    found = chosen(name, candidate("a"), candidate("b"), candidate("c"), times=900)
    assert all(found[one] > 200 for one in "abc")


@pytest.mark.parametrize("name", ["shortest_queue", "probabilistic", "power_of_two", "join_shortest_queue"])
def test_without_predictions_the_fewest_tasks_for_each_slot_count(name: str) -> None:
    one = candidate("one", own=None, length=3, concurrency=1)
    many = candidate("many", own=None, length=8, concurrency=4)
    assert chosen(name, one, many) == {"many": 200}


def test_a_backlog_is_served_by_all_slots() -> None:
    wide, narrow = candidate("wide", backlog=80, concurrency=8), candidate("narrow", backlog=20)
    assert chosen("shortest_queue", wide, narrow) == {"wide": 200}


def test_risk_prefers_the_certain_one() -> None:
    sure, unsure = candidate("sure", own=11, std=1), candidate("unsure", own=10, std=20)
    assert chosen("shortest_queue", sure, unsure) == {"unsure": 200}
    assert chosen(registry.ShortestQueueStrategy(risk=1.0), sure, unsure) == {"sure": 200}


def test_the_probability_of_being_first_counts_the_spread() -> None:
    """Equal means, and one is nearly always a little faster but seldom very slow."""
    steady, spread = candidate("steady", own=100, std=5, backlog_variance=0), candidate("spread", own=100, std=300)
    assert chosen("probabilistic", steady, spread) == {"spread": 200}


def test_the_probability_of_being_first_is_that_of_a_sample() -> None:
    rng = random.Random(3)
    for _ in range(20):
        shapes = [(rng.uniform(0, 3), rng.choice([0.01, 0.1, 0.5, 1.5])) for _ in range(rng.randint(1, 8))]
        samples = [[rng.gauss(*one) for one in shapes] for _ in range(4_000)]
        wins = Counter(times.index(min(times)) for times in samples)
        for index, chance in enumerate(first_probabilities(shapes)):
            assert chance == pytest.approx(wins[index] / 4_000, abs=0.04)


def test_the_work_for_many_instances_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = Counter[int]()
    hazard = probabilistic._hazard

    def count(z: float) -> float:
        evaluated[size] += 1
        return hazard(z)

    monkeypatch.setattr(probabilistic, "_hazard", count)
    for size in (10, 50, 1000):
        many = [candidate(str(index), 50.0 + index, 20.0) for index in range(size)]
        assert int(ProbabilisticStrategy().select(many, TASK).instance) < 20
    assert evaluated[10] < 700
    assert evaluated[50] < 2_500
    assert evaluated[1000] < 2_500


def test_round_robin_takes_turns_also_when_an_instance_comes_and_goes() -> None:
    strategy = create_strategy("round_robin")
    a, b, c = candidate("a"), candidate("b"), candidate("c")
    assert chosen(strategy, a, b, times=10) == {"a": 5, "b": 5}
    assert strategy.select([a, b, c], TASK).instance == "c"
    assert chosen(strategy, a, b, c, times=9) == {"a": 3, "b": 3, "c": 3}


def test_the_first_turn_is_drawn() -> None:
    """Several schedulers must not all begin with the same instance."""
    found = Counter(
        create_strategy("round_robin").select([candidate("a"), candidate("b")], TASK).instance for _ in range(200)
    )
    assert min(found["a"], found["b"]) > 50


def test_weights_are_shares() -> None:
    found = chosen("weighted", candidate("a", weight=3.0), candidate("b", weight=1.0), times=2000)
    assert 1300 < found["a"] < 1700


def test_power_of_two_does_not_always_find_the_best() -> None:
    found = chosen("power_of_two", candidate("a"), candidate("b", backlog=50), candidate("c", backlog=90), times=600)
    assert found["c"] == 0
    assert found["b"] > 100
    assert found["a"] > 300


def test_one_candidate_is_chosen_by_every_strategy() -> None:
    for name in strategy_names():
        assert chosen(name, candidate("only"), times=3) == {"only": 3}


@pytest.fixture
def _clean_registry() -> Iterator[None]:
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


class LastStrategy(BaseStrategy):
    name = "last"

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        return Choice(candidates[-1].instance, "the last one")


@pytest.mark.usefixtures("_clean_registry")
def test_own_strategies_are_registered_by_name() -> None:
    register_strategy("last", LastStrategy)
    register_strategy("last", LastStrategy)
    assert "last" in strategy_names()
    assert chosen("last", candidate("a"), candidate("b"), times=3) == {"b": 3}
    with pytest.raises(ConfigurationError, match="last"):
        register_strategy("last", registry.RoundRobinStrategy)


@pytest.mark.usefixtures("_clean_registry")
def test_an_unknown_or_wrong_strategy_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match=r"fastest.*shortest_queue"):
        create_strategy("fastest")
    register_strategy("number", lambda: 7)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="not a BaseStrategy"):
        create_strategy("number")


@pytest.mark.usefixtures("_clean_registry")
def test_a_strategy_that_cannot_be_created_is_an_error_that_says_why() -> None:
    register_strategy("broken", lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match=r"broken.*ZeroDivisionError"):
        create_strategy("broken")


def test_strategies_of_installed_packages_are_known_by_their_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("installed", f"{__name__}:LastStrategy", registry.ENTRY_POINT),
        EntryPoint("missing", "no_such_package:Strategy", registry.ENTRY_POINT),
    ]
    monkeypatch.setattr(registry, "_installed", lambda: {one.name: one for one in points})
    assert {"installed", "missing"} <= set(strategy_names())
    assert chosen("installed", candidate("a"), candidate("b"), times=3) == {"b": 3}
    with pytest.raises(ConfigurationError, match="no_such_package"):
        create_strategy("missing")


class NamelessStrategy(BaseStrategy):
    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        return Choice(candidates[0].instance, "the first one")


def test_a_strategy_needs_no_name() -> None:
    router = Router(NamelessStrategy(), Predictor())
    router.add_instance(Instance("i", ("m",)))
    task = Task("t", "m", None, {}, {}, 0.0)
    router.submit(task, 0.0)
    assert task.decision.to_dict()["strategy"] == "custom"

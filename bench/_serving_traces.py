"""Traces of requests, the ideals on them, and the router on them in virtual time.

The router does no I/O and gets the time from its caller, so it decides here as it does in a service. Only the time that
a request needs on its way is missing.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench._serving_stub import MODEL
from ray_multicluster_scheduler.serving.predictor import Prediction, Predictor
from ray_multicluster_scheduler.serving.router.ledger import Instance, Task
from ray_multicluster_scheduler.serving.router.router import Router
from ray_multicluster_scheduler.serving.strategies import create_strategy


@dataclass(frozen=True)
class Request:
    """``at`` is in seconds; ``size`` is 1 on average, and an instance takes its milliseconds times that."""

    at: float
    size: float


def trace(seed: int, count: int, speeds: Sequence[float], load: float = 0.72, cv: float = 1.5) -> list[Request]:
    """Poisson arrivals at a share of the instances' joint capacity; sizes are lognormal."""
    randomness = random.Random(seed)
    rate = load * sum(1000 / ms for ms in speeds)
    sigma = math.sqrt(math.log(1 + cv * cv))
    found, now = [], 0.0
    for _ in range(count):
        now += randomness.expovariate(rate)
        found.append(Request(now, randomness.lognormvariate(-sigma * sigma / 2, sigma)))
    return found


# ---- ideals: each instance serves what it was given in order; nothing is lost on the way


@dataclass
class _Queue:
    ms: float
    free: float = 0.0
    ends: list[float] = field(default_factory=list)

    def length(self, now: float) -> int:
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)
        return len(self.ends)


def _least_work(one: _Queue, request: Request) -> float:
    """When it would end, with speeds and sizes known."""
    return max(one.free, request.at) + one.ms / 1000 * request.size


def _least_time(one: _Queue, request: Request) -> float:
    """When it would end if all sizes were 1: only speeds are known."""
    return one.ms * (one.length(request.at) + 1)


def _least_requests(one: _Queue, request: Request) -> float:
    return one.length(request.at)


def ideal(
    requests: Sequence[Request], speeds: Sequence[float], score: Callable[[_Queue, Request], float]
) -> list[float]:
    """Milliseconds of each request if each goes where ``score`` is lowest; equals are chosen from at random."""
    randomness = random.Random(1)
    queues = [_Queue(ms) for ms in speeds]
    found = []
    for one in requests:
        _, _, best = min((score(each, one), randomness.random(), index) for index, each in enumerate(queues))
        chosen = queues[best]
        chosen.free = max(chosen.free, one.at) + chosen.ms / 1000 * one.size
        heapq.heappush(chosen.ends, chosen.free)
        found.append((chosen.free - one.at) * 1000)
    return found


IDEALS = {"oracle": _least_work, "speed_aware": _least_time, "join_shortest_queue": _least_requests}


# ---- the router in virtual time


@dataclass
class Ended:
    """A request that has ended: its time from arrival to end, and whether it ran within the p90 that was stated."""

    request: int
    instance: str
    ms: float
    covered: bool | None


class GivenTimes(Predictor):
    """Predicts what the metadata say: the true time, or the mean of all."""

    def predict(
        self,
        model: str,
        instance: str,
        hardware: Mapping[str, str],
        metadata: Mapping[str, Any],
        features: Mapping[str, float],
    ) -> Prediction | None:
        return Prediction(metadata["mean"], metadata["std"], source="given")


def play(
    requests: Sequence[Request],
    speeds: Sequence[float],
    strategy: str,
    *,
    predictor: Predictor | None = None,
    metadata: Callable[[Request], dict[str, Any]] = lambda _: {},
    features: Callable[[Request], dict[str, float]] = lambda _: {},
    slow_from: float = math.inf,
) -> list[Ended]:
    """The requests in the order in which they end. From ``slow_from`` the first instance takes three times as long."""
    router = Router(create_strategy(strategy), predictor or Predictor())
    for index in range(len(speeds)):
        router.add_instance(Instance(str(index), (MODEL,)))
    pending: list[tuple[float, int, Task | None]] = [(one.at, index, None) for index, one in enumerate(requests)]
    heapq.heapify(pending)
    ended: list[Ended] = []
    while pending:
        now, index, task = heapq.heappop(pending)
        if task is None:
            one = requests[index]
            router.submit(Task(str(index), MODEL, None, metadata(one), features(one), now), now)
        else:
            assert task.instance is not None
            assert task.started is not None
            stated = None if task.prediction is None else task.prediction.quantile(0.9)
            covered = None if stated is None else (now - task.started) * 1000 <= stated
            ended.append(Ended(index, task.instance.uuid, (now - requests[index].at) * 1000, covered))
            router.finish(task, now)
        while router.review(now):
            pass
        for started in router.start_ready(now):
            assert started.instance is not None
            number = int(started.id)
            place = int(started.instance.uuid)
            ms = speeds[place] * requests[number].size * (3 if place == 0 and now >= slow_from else 1)
            heapq.heappush(pending, (now + ms / 1000, number, started))
        router.moved.clear()
    return ended


def mean_ms(ended: Sequence[Ended], skip: int) -> float:
    return statistics.mean(one.ms for one in ended if one.request >= skip)

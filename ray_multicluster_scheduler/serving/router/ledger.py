"""The charge of an instance: the predicted time of every task that waits or runs there, in integer microseconds.

A charge is added in the step that chooses the instance, and exactly the same charge is removed when the task leaves,
whatever time it took. So an instance without tasks has a charge of exactly zero.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.serving.predictor import Prediction

_EXACT_RUNNING = 16
"""With more running tasks than this, their remaining time is evaluated at most once per ``_REFRESH_S``."""
_REFRESH_S = 0.005
_MIN_CV = 0.05
_MISJUDGED, _MISJUDGED_CV = 0.01, 1.0
"""The share of predictions that say little, and the relative standard deviation of such times."""


@dataclass(slots=True, eq=False)
class Task:
    """A request on its way: waiting without an instance, waiting at one, or running there."""

    id: str
    model: str
    input: Any
    metadata: dict[str, Any]
    features: dict[str, float]
    arrived: float
    instance: Instance | None = None
    prediction: Prediction | None = None
    charge: tuple[int, int] = (0, 0)
    """Mean (µs) and variance (µs²) that were added to the instance's sums."""
    started: float | None = None
    """When it was forwarded in this attempt; None while it waits."""
    attempt: int = 1
    """How often it was placed; tells late answers from current ones."""
    failures: int = 0
    """Attempts in which an instance failed while it may have had the task."""
    acknowledged: bool = False
    """Whether the instance confirmed that it has the task."""
    tried: list[str] = field(default_factory=list)
    """The instances that may have had it before."""
    decision: Any = None
    """How its instance was chosen, for `explain`."""
    socket: Any = None
    """The connection of the instance by which it was sent; None: by a request."""
    forward: Any = None
    """The asyncio task that sends it and waits for the answer."""
    slot: Any = None
    """Of a pass-through: a future that gets the connections of its instance when it may be forwarded."""


@dataclass(slots=True, eq=False)
class Instance:
    """An instance as the router sees it. ``healthy`` and ``draining`` decide whether it gets new tasks."""

    uuid: str
    models: tuple[str, ...]
    concurrency: int = 1
    weight: float = 1.0
    openai: bool = False
    """Whether it serves pass-through requests (/v1)."""
    hardware: dict[str, str] = field(default_factory=dict)
    """hardware, software_name and software_version, where known."""
    healthy: bool = True
    draining: bool = False
    paused: bool = False
    """It took no request just now: nothing starts there for a while, and others are preferred."""
    waiting: OrderedDict[str, Task] = field(default_factory=OrderedDict)
    """Ordered, since removing the first of many is slow in a dict."""
    running: dict[str, Task] = field(default_factory=dict)
    charged_us: int = 0
    charged_variance: int = 0
    _waiting_us: int = 0
    _waiting_variance: int = 0
    _remaining: tuple[float, float, float] = (-math.inf, 0.0, 0.0)

    @property
    def accepts(self) -> bool:
        return self.healthy and not self.draining

    @property
    def length(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def has_free_slot(self) -> bool:
        return not self.paused and len(self.running) < self.concurrency

    def charge(self, task: Task) -> None:
        """Add a task to those that wait here."""
        task.instance, task.started, task.acknowledged = self, None, False
        self.waiting[task.id] = task
        if task.prediction is not None:
            self.charge_time(task, task.prediction)

    def charge_time(self, task: Task, prediction: Prediction) -> None:
        """Charge the predicted time of a task that is here, and that was charged nothing so far."""
        task.prediction = prediction
        mean, variance = task.charge = (round(prediction.mean_ms * 1000), round((prediction.std_ms * 1000) ** 2))
        self.charged_us += mean
        self.charged_variance += variance
        if task.started is None:
            self._waiting_us += mean
            self._waiting_variance += variance
        self._remaining = (-math.inf, 0.0, 0.0)

    def start(self, task: Task, now: float) -> None:
        """Move a waiting task to those that run."""
        del self.waiting[task.id]
        self._waiting_us -= task.charge[0]
        self._waiting_variance -= task.charge[1]
        self.running[task.id] = task
        task.started = now
        self._remaining = (-math.inf, 0.0, 0.0)

    def release(self, task: Task) -> None:
        """Remove a task and exactly what was charged for it."""
        mean, variance = task.charge
        if self.running.pop(task.id, None) is None:
            del self.waiting[task.id]
            self._waiting_us -= mean
            self._waiting_variance -= variance
        self._remaining = (-math.inf, 0.0, 0.0)
        self.charged_us -= mean
        self.charged_variance -= variance
        task.instance, task.charge, task.started = None, (0, 0), None

    def backlog(self, now: float) -> tuple[float, float]:
        """Expected time in ms until all that is charged here has run one after another, and its variance (ms²)."""
        mean, variance = self.remaining(now)
        return mean + self._waiting_us / 1e3, variance + self._waiting_variance / 1e6

    def remaining(self, now: float) -> tuple[float, float]:
        """The part of :meth:`backlog` that belongs to running tasks: E[X - t | X > t] of each, t being its age."""
        evaluated, mean, variance = self._remaining
        if len(self.running) <= _EXACT_RUNNING or now - evaluated > _REFRESH_S:
            mean = variance = 0.0
            for one_mean, one_variance in self._remaining_of_running(now):
                mean += one_mean
                variance += one_variance
            self._remaining = (now, mean, variance)
        return mean, variance

    def _remaining_of_running(self, now: float) -> Iterator[tuple[float, float]]:
        for task in self.running.values():
            prediction = task.prediction
            if prediction is not None and task.started is not None:
                yield remaining_time(prediction.mean_ms, prediction.std_ms, (now - task.started) * 1000)


def remaining_time(mean: float, std: float, elapsed: float) -> tuple[float, float]:
    """Mean and variance of X - t given X > t, in ms, for a time X that was predicted with this mean and standard
    deviation: lognormal, but with a small probability that the prediction says little. So what overruns by far is
    expected to go on, in proportion to the time that it has run."""
    if mean <= 0:
        return 0.0, 0.0
    cv = max(std / mean, _MIN_CV)
    if elapsed <= 0:
        return mean, (cv * mean) ** 2
    total = first = second = 0.0
    for share, spread in ((1 - _MISJUDGED, math.log1p(cv * cv)), (_MISJUDGED, math.log1p(max(cv, _MISJUDGED_CV) ** 2))):
        sigma = math.sqrt(spread)
        place = (math.log(elapsed / mean) + spread / 2) / sigma
        total += share * _upper_tail(place)
        first += share * _upper_tail(place - sigma)
        second += share * math.exp(spread) * _upper_tail(place - 2 * sigma)
    if total < 1e-12:  # so far in the tail that the ratios would be noise
        return elapsed, elapsed * elapsed
    expected = mean * first / total
    return expected - elapsed, max(0.0, mean * mean * second / total - expected * expected)


def _upper_tail(x: float) -> float:
    """P(Z > x) for a standard normal Z."""
    return 0.5 * math.erfc(x / math.sqrt(2))

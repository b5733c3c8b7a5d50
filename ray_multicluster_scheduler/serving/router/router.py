"""Router: places each task on an instance, charges it there, and moves it from waiting to running to finished.

Plain Python without I/O; the caller serialises all calls. A task is in one place at any time: waiting without an
instance (``unassigned``), waiting at an instance, or running there. ``start_ready`` returns what is to be forwarded.
Events that concern many tasks only note them; ``review`` then places a bounded number of them in each step.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.serving.predictor import MAX_VALUE, Prediction, Predictor
from ray_multicluster_scheduler.serving.router.ledger import Instance, Task
from ray_multicluster_scheduler.serving.strategies.base import BaseStrategy, Candidate, Choice, shortest

_log = get_logger(__name__)
SLICE = 200
"""Tasks that are placed in one step."""
_MAX_SCANNED = 100
"""Waiting tasks of another instance that are considered for a free slot."""
_MIN_GAIN = 0.05
"""A waiting task moves only if it is expected to finish earlier by this part of the time it has left."""


class _Move(NamedTuple):
    """A waiting task that another instance would finish earlier, and by how many milliseconds."""

    gain_ms: float
    task: Task
    prediction: Prediction | None
    """On the other instance."""


class Decision(NamedTuple):
    """Why an instance was chosen: the strategy's sentence, and for each candidate its wait, own time and length."""

    strategy: str
    instance: str
    reason: str
    candidates: tuple[str, ...]
    packed: bytes
    """Three 32-bit floats for each candidate: expected wait (ms), own time (ms; -1 if unknown), tasks charged there."""

    def expected_ms(self) -> float | None:
        """The expected time until the request is finished on the chosen instance; None if it is unknown."""
        if self.instance not in self.candidates:
            return None
        index = 3 * self.candidates.index(self.instance)
        wait, own = array("f", self.packed)[index : index + 2]
        return wait + own if own >= 0 else None

    def moved(self, instance: str, prediction: Prediction | None, reason: str) -> Decision:
        """The same candidates, of which another one has become free."""
        names, numbers = self.candidates, array("f", self.packed)
        if instance not in names:
            names, numbers = (*names, instance), numbers + array("f", (0, 0, 0))
        index = 3 * names.index(instance)
        numbers[index], numbers[index + 1] = 0.0, -1.0 if prediction is None else prediction.mean_ms
        return Decision(self.strategy, instance, reason, names, numbers.tobytes())

    def size(self) -> int:
        """Bytes of memory, roughly."""
        return 300 + len(self.reason) + 20 * len(self.candidates)

    def to_dict(self) -> dict[str, Any]:
        rows, numbers = [], array("f", self.packed)
        for index, instance in enumerate(self.candidates):
            wait, own, length = numbers[3 * index : 3 * index + 3]
            rows.append(
                {
                    "instance": instance,
                    "wait_ms": round(wait, 3),
                    "predicted_ms": None if own < 0 else round(own, 3),
                    "charged_tasks": int(length),
                }
            )
        return {"strategy": self.strategy, "instance": self.instance, "reason": self.reason, "candidates": rows}


class Router:
    """Instances, the live tasks, and the strategy of each model."""

    def __init__(self, strategy: BaseStrategy, predictor: Predictor) -> None:
        self.predictor = predictor
        self.default_strategy = strategy
        self.strategies: dict[str, BaseStrategy] = {}
        """Of the models that have one of their own."""
        self.instances: dict[str, Instance] = {}
        self.tasks: dict[str, Task] = {}
        self.unassigned: dict[str, dict[str, Task]] = {}
        """By model: the tasks for which there is no instance, oldest first."""
        self._by_model: dict[str, dict[str, Instance]] = {}
        self._unpredicted: dict[str, dict[str, Task]] = {}
        """By model: the tasks at instances that were charged nothing, since nothing was known of the model."""
        self._review: deque[Task] = deque()
        """Tasks that may have to be placed anew, or charged."""
        self._problem = ""
        """Why the last prediction failed."""
        self._ready: dict[str, Instance] = {}
        """Instances that may have a free slot and a task for it."""
        self.moved: list[Task] = []
        """Tasks whose instance changed since the caller last looked."""

    # ---- instances

    def add_instance(self, instance: Instance) -> None:
        self.instances[instance.uuid] = instance
        for model in instance.models:
            self._by_model.setdefault(model, {})[instance.uuid] = instance
        if instance.accepts:
            self._offer(instance)

    def set_models(self, uuid: str, models: tuple[str, ...]) -> None:
        """The instance serves other models than before; what waits there is placed anew."""
        instance = self.instances[uuid]
        self._remove_from_index(instance)
        instance.models = models
        for model in models:
            self._by_model.setdefault(model, {})[uuid] = instance
        self._review.extend(instance.waiting.values())
        if instance.accepts:
            self._offer(instance)

    def set_concurrency(self, uuid: str, concurrency: int) -> None:
        self.instances[uuid].concurrency = concurrency
        self._ready[uuid] = self.instances[uuid]

    def set_paused(self, uuid: str, paused: bool) -> None:
        """Nothing starts on a paused instance; what waits there may move to a free slot of another."""
        instance = self.instances[uuid]
        instance.paused = paused
        self._ready[uuid] = instance
        for model in instance.models if paused and instance.waiting else ():
            self._ready.update(self._by_model[model])

    def set_health(self, uuid: str, healthy: bool) -> None:
        """An unhealthy instance gets no tasks, and those that wait there go elsewhere."""
        instance = self.instances[uuid]
        if instance.healthy == healthy:
            return
        instance.healthy = healthy
        if instance.accepts:
            self._offer(instance)
        else:
            self._review.extend(instance.waiting.values())

    def drain(self, uuid: str) -> list[Task]:
        """No new tasks for this instance; those that wait there go elsewhere. Returns those that run there."""
        instance = self.instances[uuid]
        instance.draining = True
        self._review.extend(instance.waiting.values())
        return list(instance.running.values())

    def forget_instance(self, uuid: str) -> None:
        """Remove a drained instance on which nothing runs."""
        instance = self.instances.pop(uuid)
        assert not instance.length, f"{instance.length} tasks are charged to the instance {uuid}"
        self._ready.pop(uuid, None)
        self._remove_from_index(instance)
        self.predictor.forget_instance(uuid)

    def instances_of(self, model: str) -> Iterable[Instance]:
        return self._by_model.get(model, {}).values()

    def waiting_for(self, model: str) -> int:
        """Requests that wait for this model, or at its instances."""
        return len(self.unassigned.get(model, ())) + sum(len(one.waiting) for one in self.instances_of(model))

    def why_unassigned(self, model: str) -> str:
        """Why a request for this model has no instance."""
        known = len(self._by_model.get(model, ()))
        if not known:
            return f"no instance of the model {model} is registered"
        return f"none of the {known} instances of {model} can take it now"

    def v1_models(self) -> list[str]:
        """Models that /v1 serves."""
        able = [one for one in self.instances.values() if one.openai and not one.draining]
        return sorted({model for one in able for model in one.models})

    def models(self) -> set[str]:
        """Models that have instances or waiting tasks."""
        return {*self._by_model, *self.unassigned}

    def strategy_of(self, model: str) -> BaseStrategy:
        return self.strategies.get(model, self.default_strategy)

    # ---- tasks

    def submit(self, task: Task, now: float, *, later: bool = False) -> None:
        """Place a new task, or note it for :meth:`review` if others wait for that already. Its id must not be that of
        a live task."""
        if later or (self._review and task.slot is None and task.model in self.unassigned):
            self._place(task, None)
            self._review.append(task)
        else:
            self._place(task, self._choose(task, now))
        self.tasks[task.id] = task

    def review(self, now: float) -> bool:
        """Place anew, or charge, up to ``SLICE`` of the tasks for which something has changed; whether any are left."""
        if not self._review:
            return False
        for _ in range(min(SLICE, len(self._review))):
            task = self._review.popleft()
            instance = task.instance
            if self.tasks.get(task.id) is not task:
                continue
            if instance is None:
                chosen = self._choose(task, now)
                if chosen is not None:
                    self._take_out(task)
                    self._place(task, chosen)
            elif task.started is None and not (instance.accepts and task.model in instance.models):
                self._take_out(task)
                self._place(task, self._choose(task, now))
            elif task.prediction is None and (prediction := self._predict(instance, task)) is not None:
                instance.charge_time(task, prediction)
                self._unpredicted.get(task.model, {}).pop(task.id, None)
        return bool(self._review)

    def resume(self, task: Task, instance: Instance) -> None:
        """Charge a task to the instance that has had it since ``task.started``, before this process."""
        started = task.started
        assert started is not None
        self.tasks[task.id] = task
        task.prediction = self._predict(instance, task)
        if task.prediction is None:
            self._unpredicted.setdefault(task.model, {})[task.id] = task
        instance.charge(task)
        instance.start(task, started)
        task.acknowledged = True

    def start_ready(self, now: float) -> list[Task]:
        """Move tasks into free slots; the caller forwards each to ``task.instance``."""
        started = []
        while self._ready:
            _, instance = self._ready.popitem()
            while instance.accepts and instance.has_free_slot:
                task = next(iter(instance.waiting.values()), None) or self._take_from_others(instance, now)
                if task is None:
                    break
                instance.start(task, now)
                started.append(task)
        return started

    def finish(self, task: Task, now: float, execution_ms: float | None = None, *, learn: bool = True) -> None:
        """Remove a live task, and exactly what was charged for it; ``learn`` from its time if it has a result."""
        instance, started = task.instance, task.started
        if instance is not None and started is not None and learn:
            actual = (now - started) * 1000 if execution_ms is None else execution_ms
            self.predictor.learn(
                task.model, instance.uuid, instance.hardware, task.metadata, task.features, actual, task.prediction
            )
        self._take_out(task)
        del self.tasks[task.id]
        if learn and task.model in self._unpredicted:  # the first time of a model was observed
            self._review.extend(self._unpredicted.pop(task.model).values())

    def give_back(self, task: Task, now: float, *, tried: bool = True) -> None:
        """The instance did not take the task or lost it: choose again, if possible another one than those that may
        have had it (``tried``)."""
        if task.instance is not None and tried:
            task.tried.append(task.instance.uuid)
        task.attempt += 1
        self._take_out(task)
        self._place(task, self._choose(task, now))

    # ---- inside

    def _take_out(self, task: Task) -> None:
        """Remove the task from where it waits or runs."""
        instance = task.instance
        if instance is not None:
            instance.release(task)
            self._unpredicted.get(task.model, {}).pop(task.id, None)
            self._ready[instance.uuid] = instance
            return
        waiting = self.unassigned[task.model]
        del waiting[task.id]
        if not waiting:
            del self.unassigned[task.model]

    def _choose(self, task: Task, now: float) -> tuple[Instance, Prediction | None, Decision] | None:
        """The instance for a task; None if none can take it now. Changes nothing."""
        able = [one for one in self.instances_of(task.model) if one.accepts and (one.openai or task.slot is None)]
        if not able:
            return None
        if task.tried:
            able = [one for one in able if one.uuid not in task.tried] or able
        able = [one for one in able if not one.paused] or able
        candidates = [self._candidate(one, task, now) for one in able]
        strategy = self.strategy_of(task.model)
        choice = self._select(strategy, candidates, task)
        numbers: list[float] = []
        prediction = None
        for one in candidates:
            own = -1.0 if one.prediction is None else one.prediction.mean_ms
            numbers += (one.wait_ms, own, one.length)
            if one.instance == choice.instance:
                prediction = one.prediction
        names = _shared(tuple(one.instance for one in candidates))
        decision = Decision(strategy.name, choice.instance, choice.reason, names, array("f", numbers).tobytes())
        return self.instances[choice.instance], prediction, decision

    def _place(self, task: Task, chosen: tuple[Instance, Prediction | None, Decision] | None) -> None:
        """Charge the task to the chosen instance, or let it wait for one."""
        self.moved.append(task)
        if chosen is None:
            task.prediction = task.decision = None
            self.unassigned.setdefault(task.model, {})[task.id] = task
            return
        instance, task.prediction, task.decision = chosen
        instance.charge(task)
        if task.prediction is None:
            self._unpredicted.setdefault(task.model, {})[task.id] = task
        if instance.has_free_slot:
            self._ready[instance.uuid] = instance

    def _select(self, strategy: BaseStrategy, candidates: list[Candidate], task: Task) -> Choice:
        try:
            choice = strategy.select(tuple(candidates), task)
            if any(one.instance == choice.instance for one in candidates):
                return choice
            problem = f"it chose {choice.instance!r}, which is no candidate"
        except Exception as error:  # noqa: BLE001 # code of users; a request must not be lost by it
            problem = f"{type(error).__name__}: {error}"
        _log.error(
            "serving strategy %s failed for task %s (%s); joining the shortest queue", strategy.name, task.id, problem
        )
        fallback = shortest(candidates)
        return Choice(fallback.instance, f"{fallback.reason}; the strategy {strategy.name} failed: {problem}")

    def _candidate(self, instance: Instance, task: Task, now: float) -> Candidate:
        backlog, variance = instance.backlog(now)
        return Candidate(
            instance=instance.uuid,
            length=instance.length,
            running=len(instance.running),
            concurrency=instance.concurrency,
            weight=instance.weight,
            backlog_ms=backlog,
            backlog_variance=variance,
            prediction=self._predict(instance, task),
        )

    def _predict(self, instance: Instance, task: Task) -> Prediction | None:
        """None also if the predictor fails: a request must not be lost by it."""
        try:
            found = self.predictor.predict(task.model, instance.uuid, instance.hardware, task.metadata, task.features)
            if found is None or (0 <= found.mean_ms <= MAX_VALUE and 0 <= found.std_ms <= MAX_VALUE):
                return found
            problem = f"it predicted {found.mean_ms} ms with a deviation of {found.std_ms} ms"
        except Exception as error:  # noqa: BLE001 # of a table or a predictor of the user
            problem = f"{type(error).__name__}: {error}"
        if problem != self._problem:
            self._problem = problem
            _log.error("no times of %s are predicted (%s); strategies count requests instead", task.model, problem)
        return None

    def _remove_from_index(self, instance: Instance) -> None:
        for model in instance.models:
            self._by_model[model].pop(instance.uuid)
            if not self._by_model[model]:
                del self._by_model[model]

    def _offer(self, instance: Instance) -> None:
        """An instance became available: place what waits for one of its models."""
        self._ready[instance.uuid] = instance
        for model in instance.models:
            self._review.extend(self.unassigned.get(model, {}).values())

    def _take_from_others(self, instance: Instance, now: float) -> Task | None:
        """A task that waits at another instance and would finish earlier in a free slot of this one; it is charged
        here. The one that gains most of those that come first at their instances."""
        best: _Move | None = None
        for model in instance.models:
            moves = self.strategy_of(model).moves_waiting
            for other in self.instances_of(model):
                if other is instance or not other.waiting or not (moves or other.paused):
                    continue
                found = self._gain(other, instance, model, now)
                if found is not None and (best is None or found.gain_ms > best.gain_ms):
                    best = found
        if best is None:
            return None
        task, left = best.task, best.task.instance
        assert left is not None
        decision = task.decision
        left.release(task)
        self._unpredicted.get(task.model, {}).pop(task.id, None)
        gain = "" if left.paused else f", expected to finish {best.gain_ms:.4g} ms earlier than on {left.uuid}"
        reason = f"moved to a free slot{gain or f', since {left.uuid} takes no requests now'}"
        self._place(task, (instance, best.prediction, decision.moved(instance.uuid, best.prediction, reason)))
        self._ready.pop(instance.uuid, None)
        return task

    def _gain(self, other: Instance, instance: Instance, model: str, now: float) -> _Move | None:
        """The first task waiting at ``other`` that would finish earlier here."""
        before, _ = other.remaining(now)
        for task in islice(other.waiting.values(), _MAX_SCANNED):
            there = before / other.concurrency + task.charge[0] / 1e3
            before += task.charge[0] / 1e3
            if task.model != model or instance.uuid in task.tried or not (instance.openai or task.slot is None):
                continue
            prediction = self._predict(instance, task)
            here = prediction.mean_ms if prediction is not None else 0.0
            if other.paused or here < there * (1 - _MIN_GAIN) or (prediction is None and not task.charge[0]):
                return _Move(math.inf if other.paused else there - here, task, prediction)
        return None


@functools.lru_cache(maxsize=1024)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """One object for equal names, since many thousands of finished tasks keep theirs."""
    return names

"""What is charged to instances: any order of events leaves an idle router with exactly zero charged."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import math
import random
import time
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ray_multicluster_scheduler.common.exception import InstanceError, SchedulerError
from ray_multicluster_scheduler.serving import (
    SchedulerRequest,
    SwarmPilotScheduler,
    TaskInstanceClient,
    core,
    instance_registry,
)
from ray_multicluster_scheduler.serving.models import InstanceStatusResponse, InstanceSubmitResponse
from ray_multicluster_scheduler.serving.predictor import Prediction, Predictor
from ray_multicluster_scheduler.serving.router.ledger import Instance, Task, remaining_time
from ray_multicluster_scheduler.serving.router.router import SLICE, Router
from ray_multicluster_scheduler.serving.strategies import create_strategy, strategy_names


class HostilePredictor(Predictor):
    """Fails as it is told, or predicts what no time can be."""

    hostile: Prediction | type[Exception] | None = None

    def predict(self, *arguments: Any) -> Prediction | None:
        if isinstance(self.hostile, type):
            raise self.hostile("no idea")
        return self.hostile or super().predict(*arguments)


HOSTILE = st.sampled_from(
    [None, None, OverflowError, *(Prediction(*one) for one in ((math.nan, 1.0), (math.inf, 1.0), (1.0, -1.0), (0, 0)))]
)
NUMBERS = st.sampled_from([3, 3, 0, -1, 10**400, math.nan, math.inf])


class RoutedTasks(RuleBasedStateMachine):
    """Submits, starts, finishes, loses and moves tasks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = HostilePredictor()
        self.router = Router(create_strategy("shortest_queue"), self.predictor)
        self.now = 0.0
        self.submitted = self.finished = self.added = 0

    @rule(model=st.sampled_from("ab"), size=st.floats(0.1, 1e4))
    def submit(self, model: str, size: float) -> None:
        self.submitted += 1
        features = {"size": size}
        self.router.submit(Task(f"t{self.submitted}", model, None, dict(features), features, self.now), self.now)

    @rule(hostile=HOSTILE)
    def spoil_predictions(self, hostile: Any) -> None:
        self.predictor.hostile = hostile

    @rule()
    def start(self) -> None:
        for task in self.router.start_ready(self.now):
            assert task.instance is not None
            assert task.started == self.now

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.router.tasks)
    @rule(data=st.data(), learn=st.booleans(), took=st.none() | st.floats(0, 1e6))
    def finish(self, data: st.DataObject, learn: bool, took: float | None) -> None:
        self.router.finish(self._any_task(data), self.now, took, learn=learn)
        self.finished += 1

    @precondition(lambda self: self.router.tasks)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        task = self._any_task(data)
        attempt = task.attempt
        self.router.give_back(task, self.now)
        assert task.attempt == attempt + 1

    @rule(
        models=st.sampled_from([("a",), ("b",), ("a", "b"), ()]), concurrency=st.integers(1, 3), healthy=st.booleans()
    )
    def add_instance(self, models: tuple[str, ...], concurrency: int, healthy: bool) -> None:
        self.added += 1
        self.router.add_instance(Instance(f"i{self.added}", models, concurrency, healthy=healthy))

    @precondition(lambda self: self.router.instances)
    @rule(data=st.data(), healthy=st.booleans())
    def set_health(self, data: st.DataObject, healthy: bool) -> None:
        self.router.set_health(self._any_instance(data), healthy)

    @precondition(lambda self: self.router.instances)
    @rule(data=st.data(), paused=st.booleans())
    def set_paused(self, data: st.DataObject, paused: bool) -> None:
        self.router.set_paused(self._any_instance(data), paused)

    @rule()
    def review(self) -> None:
        while self.router.review(self.now):
            pass

    @precondition(lambda self: self.router.instances)
    @rule(data=st.data(), models=st.sampled_from([("a",), ("b",), ("a", "b")]))
    def set_models(self, data: st.DataObject, models: tuple[str, ...]) -> None:
        self.router.set_models(self._any_instance(data), models)

    @precondition(lambda self: self.router.instances)
    @rule(data=st.data())
    def remove_instance(self, data: st.DataObject) -> None:
        uuid = self._any_instance(data)
        for task in self.router.drain(uuid):
            self.router.give_back(task, self.now)
        self.review()
        self.router.forget_instance(uuid)

    @rule(name=st.sampled_from(strategy_names()))
    def switch_strategy(self, name: str) -> None:
        self.router.default_strategy = create_strategy(name)

    @invariant()
    def each_task_is_in_one_place(self) -> None:
        places = [task for one in self.router.unassigned.values() for task in one.values()]
        for instance in self.router.instances.values():
            places += [*instance.waiting.values(), *instance.running.values()]
            assert all(task.instance is instance for task in (*instance.waiting.values(), *instance.running.values()))
            assert all(task.started is None for task in instance.waiting.values())
            assert len(instance.running) <= instance.concurrency
            assert instance.accepts or not instance.waiting or self.router._review
        assert sorted(task.id for task in places) == sorted(self.router.tasks)
        assert len(self.router.tasks) == self.submitted - self.finished

    @invariant()
    def charges_are_those_of_the_tasks(self) -> None:
        for instance in self.router.instances.values():
            charges = [task.charge for task in (*instance.waiting.values(), *instance.running.values())]
            assert instance.charged_us == sum(mean for mean, _ in charges)
            assert instance.charged_variance == sum(variance for _, variance in charges)
            mean, variance = instance.backlog(self.now)
            assert mean >= 0
            assert variance >= 0
            assert math.isfinite(mean + variance)

    def teardown(self) -> None:
        for task in list(self.router.tasks.values()):
            self.router.finish(task, self.now)
        for instance in self.router.instances.values():
            assert (instance.charged_us, instance.charged_variance, instance.backlog(self.now)) == (0, 0, (0.0, 0.0))
        assert not self.router.unassigned

    def _any_task(self, data: st.DataObject) -> Task:
        return self.router.tasks[data.draw(st.sampled_from(sorted(self.router.tasks)))]

    def _any_instance(self, data: st.DataObject) -> str:
        return str(data.draw(st.sampled_from(sorted(self.router.instances))))


TestRoutedTasks = RoutedTasks.TestCase
TestRoutedTasks.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


class SilentClient(TaskInstanceClient):
    """An instance that answers probes, and takes tasks without ever answering."""

    async def get_status_async(self) -> InstanceStatusResponse:
        return InstanceStatusResponse(instance_id=self.instance_id, model_type="a", replicas_running=2)

    async def get_models_async(self) -> list[str]:
        return ["a"]

    async def submit_async(self, *_: object, **__: object) -> InstanceSubmitResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def post_json(self, *_: object) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError


class ScheduledTasks(RuleBasedStateMachine):
    """The same for the whole scheduler, with repeats, late and wrong reports, retries and pass-through requests."""

    def __init__(self) -> None:
        super().__init__()
        self.now, names = 0.0, itertools.count()
        self.patches = contextlib.ExitStack()  # Hypothesis repeats runs, which must be the same each time
        clock = SimpleNamespace(monotonic=lambda: self.now)
        ids = SimpleNamespace(uuid4=lambda: uuid.UUID(int=next(names)))
        self.patches.enter_context(mock.patch.multiple(core, time=clock, uuid=ids))
        self.patches.enter_context(mock.patch.multiple(instance_registry, uuids=ids))
        self.loop = asyncio.new_event_loop()
        self.patches.enter_context(mock.patch.object(self.loop, "time", clock.monotonic))
        self.scheduler = SwarmPilotScheduler(loop=self.loop, health_interval_s=3600)
        self.router = self.scheduler._router
        self.predictor = self.router.predictor = HostilePredictor()
        self.known: list[str] = []
        """Ids of all tasks so far."""
        self.added = self.passed = 0

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """On the scheduler's loop; errors of the scheduler are answers, too."""

        async def work() -> Any:
            with contextlib.suppress(SchedulerError):
                found = function(*arguments, **options)
                return await found if inspect.isawaitable(found) else found

        return self.loop.run_until_complete(work())

    @initialize()
    def begin(self) -> None:
        self.add_instance(openai=True, model="a", again=False)
        self.add_instance(openai=False, model="a", again=False)

    @rule(number=NUMBERS, weight=st.booleans())
    def add_hostile(self, number: Any, weight: bool) -> None:
        """Numbers that are refused, also for an instance that is registered."""
        given = {"weight": number} if weight else {"concurrency": number}
        client = SilentClient(f"http://127.0.0.1:{self.added}")
        self.call(self.scheduler.add_instance_async, client, **given)

    @rule(hostile=HOSTILE)
    def spoil_predictions(self, hostile: Any) -> None:
        self.predictor.hostile = hostile

    @rule(openai=st.booleans(), model=st.sampled_from(["a", "b", None]), again=st.booleans())
    def add_instance(self, openai: bool, model: str | None, again: bool) -> None:
        self.added += not again or not self.added
        client = SilentClient(f"http://127.0.0.1:{self.added}")
        kind = "openai" if openai else "queue"
        self.call(
            self.scheduler.add_instance_async, client, model_name=model, kind=kind, concurrency=self.added % 3 + 1
        )

    @rule(model=st.sampled_from("ab"), size=st.floats(0.1, 1e4), data=st.data())
    def submit(self, model: str, size: float, data: st.DataObject) -> None:
        """Also with the id of another task, or of a pass-through."""
        task_id = data.draw(st.sampled_from([None, "x", *self.known[-3:], *list(self.router.tasks)[:3]]))
        request = SchedulerRequest(model_type=model, metadata={"size": size, "idempotent": size > 10}, task_id=task_id)
        response = self.call(self.scheduler.schedule, request)
        if response is not None:
            self.known.append(response.task_id)

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(model=st.sampled_from("ab"))
    def open_request(self, model: str) -> None:
        self.passed += 1
        slot = self.loop.create_future()
        self.call(self.scheduler.open_request, Task(f"p{self.passed}", model, None, {}, {}, 0.0, slot=slot))

    @precondition(lambda self: self.router.tasks)
    @rule(data=st.data(), gone=st.booleans(), learn=st.booleans())
    def end_request(self, data: st.DataObject, gone: bool, learn: bool) -> None:
        task = self.any_task(data)
        if task.slot is not None and task.started is not None and data.draw(st.booleans()):
            self.call(self.scheduler.retry_request, task, "no", sent=not gone)
            if not task.slot.done():  # it is placed again, or its handler gives up
                return
        if task.slot is not None:
            self.call(self.scheduler.close_request, task, learn=learn, problem="no" if gone else "")
            self.call(self.scheduler.close_request, task, learn=learn)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), error=st.none() | st.just("no"), took=st.none() | st.floats(0, 1e6))
    def report(self, data: st.DataObject, error: str | None, took: float | None) -> None:
        """From any instance, for any task: right, wrong, late or repeated."""
        task_id, name = data.draw(st.sampled_from(self.known)), self.any_name(data)
        for _ in range(2):
            self.call(self.scheduler.handle_completion, task_id, name, took, "x", error)

    @precondition(lambda self: self.router.tasks)
    @rule(
        data=st.data(), late=st.booleans(), finished=st.booleans(), status=st.none() | st.sampled_from([422, 429, 500])
    )
    def answer(self, data: st.DataObject, late: bool, finished: bool, status: int | None) -> None:
        task = self.any_task(data)
        if task.slot is not None:
            return
        attempt = task.attempt - late
        if status is None:
            answer = InstanceSubmitResponse.model_validate({"result": 1} if finished else {})
            self.call(self.scheduler.answered, task, attempt, answer)
        else:
            error = InstanceError("no")
            error.sent, error.status = finished, status
            self.call(self.scheduler.forward_failed, task, attempt, error)

    @precondition(lambda self: self.router.tasks and self.router.instances)
    @rule(data=st.data(), success=st.booleans())
    def acknowledge(self, data: st.DataObject, success: bool) -> None:
        instance = data.draw(st.sampled_from(sorted(self.router.instances)))
        self.call(self.scheduler.acknowledge, self.any_task(data).id, instance, success, "")

    @precondition(lambda self: self.router.instances)
    @rule(data=st.data(), drain=st.booleans())
    def remove(self, data: st.DataObject, drain: bool) -> None:
        self.call(self.scheduler.remove_instance, self.any_name(data), drain=drain)

    @precondition(lambda self: self.router.instances)
    @rule(data=st.data(), gone=st.booleans(), back=st.booleans(), replicas=st.sampled_from([3, 0, -1, 10**400]))
    def lose(self, data: st.DataObject, gone: bool, back: bool, replicas: int) -> None:
        instance = data.draw(st.sampled_from(sorted(self.router.instances)))
        self.call(self.scheduler.unreachable, instance, "it is away.", gone=gone)
        if back:
            self.call(self.scheduler.probed, instance, ("b",), replicas)

    @precondition(lambda self: self.router.instances)
    @rule(data=st.data(), paused=st.booleans(), restarted=st.booleans())
    def interrupt(self, data: st.DataObject, paused: bool, restarted: bool) -> None:
        instance = data.draw(st.sampled_from(sorted(self.router.instances)))
        self.call(self.scheduler.paused, instance, paused)
        if restarted:
            self.call(self.scheduler.restarted, instance, self.now)

    @rule(name=st.sampled_from(strategy_names()), model=st.none() | st.sampled_from("ab"))
    def switch_strategy(self, name: str, model: str | None) -> None:
        before = [(one.charged_us, one.charged_variance) for one in self.router.instances.values()]
        self.call(self.scheduler.set_strategy, name, model)
        assert before == [(one.charged_us, one.charged_variance) for one in self.router.instances.values()]

    @invariant()
    def tracker_and_router_agree(self) -> None:
        live = {one.task_id for one in self.scheduler.task_tracker._live.values()}
        assert live == {task.id for task in self.router.tasks.values() if task.slot is None}
        held = [
            task for one in self.router.instances.values() for task in (*one.waiting.values(), *one.running.values())
        ]
        assert len(held) + sum(map(len, self.router.unassigned.values())) == len(self.router.tasks)
        for instance in self.router.instances.values():
            charges = [task.charge for task in (*instance.waiting.values(), *instance.running.values())]
            assert (instance.charged_us, instance.charged_variance) == tuple(
                map(sum, zip((0, 0), *charges, strict=True))
            )
            assert not instance.draining or instance.length, "a drained instance is forgotten"

    def teardown(self) -> None:
        for task in list(self.router.tasks.values()):
            if task.slot is not None:
                self.call(self.scheduler.close_request, task, learn=True)
            else:
                self.call(self.scheduler.handle_completion, task.id, None, 1.0)
        assert not self.router.tasks
        assert not self.router.unassigned
        for instance in self.router.instances.values():
            assert (instance.length, instance.charged_us, instance.charged_variance) == (0, 0, 0)
        self.loop.run_until_complete(self.scheduler.close_async())
        while left := asyncio.all_tasks(self.loop):  # connections of removed instances are closed in the background
            self.loop.run_until_complete(asyncio.wait(left))
        self.loop.close()
        self.patches.close()

    def any_task(self, data: st.DataObject) -> Task:
        return self.router.tasks[data.draw(st.sampled_from(sorted(self.router.tasks)))]

    def any_name(self, data: st.DataObject) -> str:
        addresses = [f"127.0.0.1:{number}" for number in range(1, self.added + 1)]
        return str(data.draw(st.sampled_from(["nobody", *addresses, *sorted(self.router.instances)])))


TestScheduledTasks = ScheduledTasks.TestCase
TestScheduledTasks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_remaining_time_is_the_conditional_expectation() -> None:
    """Compared with a sample of the same lognormal distribution."""
    rng = random.Random(1)
    mean, std = 50.0, 75.0
    spread = math.log1p((std / mean) ** 2)
    sample = [math.exp(rng.gauss(math.log(mean) - spread / 2, math.sqrt(spread))) for _ in range(200_000)]
    for elapsed in (0.0, 10.0, 50.0, 200.0):
        left = [value - elapsed for value in sample if value > elapsed]
        expected, _ = remaining_time(mean, std, elapsed)
        assert expected == pytest.approx(sum(left) / len(left), rel=0.05)


@pytest.mark.parametrize(("mean", "std"), [(10.0, 0.0), (10.0, 3.0), (0.001, 0.002), (1e6, 1.0), (0.0, 0.0)])
def test_remaining_time_far_in_the_tail(mean: float, std: float) -> None:
    for exponent in range(-20, 60):
        elapsed = mean * 1.3**exponent
        expected, variance = remaining_time(mean, std, elapsed)
        assert 0 <= expected <= 10 * (mean + elapsed)
        assert variance >= 0
        assert math.isfinite(variance)
        if elapsed > 2 * mean:
            assert expected > elapsed / 100, "what overruns is not expected to end at once"


def test_an_instance_without_predictions_is_charged_nothing_and_counts_tasks() -> None:
    router = Router(create_strategy("shortest_queue"), Predictor())
    for name in "xy":
        router.add_instance(Instance(name, ("m",)))
    for index in range(6):
        router.submit(Task(str(index), "m", None, {}, {}, 0.0), 0.0)
    assert [one.length for one in router.instances.values()] == [3, 3]
    assert all(one.charged_us == 0 for one in router.instances.values())


def waiting_router(tasks: int) -> Router:
    """One instance at which all of these tasks wait, and another one that is not used yet."""
    router = Router(create_strategy("shortest_queue"), Predictor())
    for name in "xy":
        router.add_instance(Instance(name, ("m",), healthy=name == "x"))
    for index in range(tasks):
        router.submit(Task(str(index), "m", None, {}, {}, 0.0), 0.0)
    assert len(router.instances["x"].waiting) == tasks
    router.moved.clear()
    return router


def reviewed(router: Router) -> int:
    """Review all; the number of steps, each of which is bounded."""
    steps, more = 0, True
    router.moved.clear()
    while more:
        more = router.review(0.0)
        assert len(router.moved) <= SLICE
        router.moved.clear()
        steps += 1
    return steps


def test_many_waiting_tasks_move_in_bounded_steps_and_in_their_order() -> None:
    router = waiting_router(5_000)
    router.set_health("x", False)
    assert not router.moved
    assert reviewed(router) == 25
    assert list(router.unassigned["m"]) == [str(index) for index in range(5_000)]
    router.set_health("y", True)
    router.review(0.0)
    router.submit(Task("late", "m", None, {}, {}, 0.0), 0.0)
    reviewed(router)
    assert list(router.instances["y"].waiting) == [*(str(index) for index in range(5_000)), "late"]
    assert not router.unassigned


def test_an_instance_that_comes_and_goes_while_tasks_move_loses_none() -> None:
    router = waiting_router(2_000)
    for round_ in range(30):
        router.set_health("x", round_ % 2 == 1)
        router.set_health("y", round_ % 3 == 1)
        router.review(0.0)
    router.set_health("y", True)
    reviewed(router)
    assert sum(one.length for one in router.instances.values()) == 2_000 == len(router.tasks)


def test_the_first_observed_time_is_charged_to_many_tasks_in_bounded_steps() -> None:
    router = waiting_router(1_000)
    (first,) = router.start_ready(0.0)
    router.finish(first, 0.010)
    charged = []
    while router.review(0.0):
        charged.append(sum(task.charge[0] > 0 for task in router.tasks.values()))
    assert charged == [200, 400, 600, 800]
    assert all(task.charge[0] > 0 for task in router.tasks.values())


def test_taking_the_first_of_many_is_cheap() -> None:
    """The time for each does not grow with the number of tasks: a dict would look at all that were removed before."""
    took = []
    for tasks in (4_000, 64_000):
        instance = Instance("x", ("m",), concurrency=tasks)
        for index in range(tasks):
            instance.charge(Task(str(index), "m", None, {}, {}, 0.0))
        began = time.process_time()
        for _ in range(4_000):
            instance.start(next(iter(instance.waiting.values())), 0.0)
        took.append(time.process_time() - began)
    assert took[1] < 5 * took[0]


def test_a_waiting_task_moves_to_a_slot_that_becomes_free() -> None:
    """Two equal instances: the long task of one keeps its neighbour waiting until the other one is free."""
    predictor = Predictor()
    for name in "xy":
        for _ in range(5):
            predictor.learn("m", name, {}, {}, {}, 10.0, Prediction(10.0, 1.0))
    router = Router(create_strategy("shortest_queue"), predictor)
    for name in "xy":
        router.add_instance(Instance(name, ("m",)))
    for index in range(4):
        router.submit(Task(str(index), "m", None, {}, {}, 0.0), 0.0)
    started = {task.id: task for task in router.start_ready(0.0)}
    assert len(started) == 2
    first, second = started.values()
    router.finish(first, 0.010)
    own = router.start_ready(0.010)
    router.finish(own[0], 0.020)
    moved = router.start_ready(0.020)  # the task behind `second`, which still runs
    assert len(moved) == 1
    assert moved[0].instance is not second.instance
    decision = moved[0].decision
    assert decision.reason.startswith("moved to a free slot")
    assert sorted(decision.candidates) == ["x", "y"]
    assert decision.expected_ms() == pytest.approx(10, rel=0.1), "it waits no longer"

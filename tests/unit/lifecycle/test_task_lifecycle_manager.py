"""TaskLifecycleManager: events in any order from any thread, instructions carried out in the right one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest

from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    Complete,
    Dispatch,
    Instruction,
    Persist,
    Transition,
)
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.task_lifecycle_manager import TaskLifecycleManager
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import MemoryTransitionLog
from tests.support.eventually import eventually
from tests.unit.lifecycle.driver import FREE, cluster, snapshot, task


class Journal(MemoryTransitionLog):
    """Log, executor and subscribers in one, so that the order between them can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, Any]] = []
        self.on_dispatch: Callable[[Dispatch], None] = lambda order: None

    def append(self, entries: Sequence[Persist]) -> None:
        super().append(entries)
        self.lines += [("durable", (entry.transition.task_id, entry.transition.state)) for entry in entries]

    def dispatch(self, orders: list[Dispatch]) -> None:
        for order in orders:
            self.lines.append(("dispatch", order))
            self.on_dispatch(order)

    def cancel(self, order: CancelAttempt) -> None:
        self.lines.append(("cancel", order))

    def refresh(self, name: str) -> None:
        self.lines.append(("refresh", name))

    def check_dashboard(self, name: str) -> None:
        self.lines.append(("check", name))

    def transition(self, transition: Transition) -> None:
        self.lines.append(("told", (transition.task_id, transition.state)))

    def completed(self, completion: Complete) -> None:
        self.lines.append(("completed", completion))

    def of(self, kind: str) -> list[Any]:
        return [what for line, what in self.lines if line == kind]


def make(cpus: float | None = 4, **settings: Any) -> tuple[TaskLifecycleManager, Journal, list[BaseException]]:
    """A manager with one idle cluster, a; with ``cpus=None`` it was not seen yet."""
    journal, failures, clock = Journal(), list[BaseException](), SystemClock()
    machine = SchedulerMachine(Settings(**{**FREE, **settings}), [cluster("a")])
    manager = TaskLifecycleManager(machine, journal, clock, journal)
    manager.connect_executor(journal, failures.append)
    manager.post(events.LinkUp("a", "3.11.9", "2.60.0", "s1"))
    if cpus is not None:
        manager.post(events.SnapshotTaken(snapshot("a", clock.now(), cpus)))
    return manager, journal, failures


async def test_an_item_from_submission_to_its_end() -> None:
    manager, journal, _ = make()

    def run(order: Dispatch) -> None:
        manager.post(events.DispatchAccepted(order.task_id, order.attempt))
        manager.post(events.Started(order.task_id, order.attempt, 0.0, "n1"))
        manager.post(events.AttemptFinished(order.task_id, order.attempt, "succeeded"))

    journal.on_dispatch = run
    manager.post(events.Submitted(task("t1")))
    await eventually(lambda: journal.of("completed"))
    assert journal.of("completed")[0].state is TaskState.SUCCEEDED
    states = [step.state for step in manager.log.history("t1")]
    assert states == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]
    decision = manager.log.decision("t1")
    assert decision is not None
    assert decision.cluster == "a"
    manager.stop_timers()


async def test_every_step_is_durable_before_anybody_hears_of_it() -> None:
    manager, journal, _ = make()
    for number in range(20):
        manager.post(events.Submitted(task(f"t{number}", 0.1)))
    await eventually(lambda: len(journal.of("dispatch")) == 20)
    for number in range(20):
        manager.post(events.AttemptFinished(f"t{number}", 1, "succeeded"))
    await eventually(lambda: len(journal.of("completed")) == 20)
    durable: set[Any] = set()
    for line, what in journal.lines:
        match line:
            case "durable":
                durable.add(what)
            case "told":
                assert what in durable
            case "dispatch":
                assert (what.task_id, TaskState.DISPATCHING) in durable
            case "completed":
                assert (what.task_id, what.state) in durable
    manager.stop_timers()


async def test_a_timer_fires_at_its_time() -> None:
    manager, journal, _ = make(cpus=1)
    manager.post(events.Submitted(task("long")))
    manager.post(events.Submitted(task("t1", queue_timeout=0.05)))
    await eventually(lambda: journal.of("completed"))
    (done,) = journal.of("completed")
    assert (done.task_id, done.error) == ("t1", "TaskTimeoutError")
    manager.stop_timers()


async def test_a_timer_that_is_not_needed_any_more_does_not_fire() -> None:
    manager, journal, _ = make(cpus=1)
    manager.post(events.Submitted(task("long")))
    manager.post(events.Submitted(task("t1", queue_timeout=0.1)))
    manager.post(events.AttemptFinished("long", 1, "succeeded"))
    await eventually(lambda: len(journal.of("dispatch")) == 2)
    await asyncio.sleep(0.2)
    assert [done.task_id for done in journal.of("completed")] == ["long"]
    manager.stop_timers()


async def test_after_stop_timers_none_fires() -> None:
    manager, journal, _ = make(cpus=1)
    manager.post(events.Submitted(task("long")))
    manager.post(events.Submitted(task("t1", queue_timeout=0.05)))
    await eventually(lambda: manager.machine.timers)
    manager.stop_timers()
    await asyncio.sleep(0.15)
    assert journal.of("completed") == []


async def test_what_one_call_leaves_over_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """One snapshot makes room for more items than the machine places in one call."""
    manager, journal, _ = make(cpus=None)
    for number in range(500):
        manager.post(events.Submitted(task(f"t{number}")))
    await eventually(lambda: len({task_id for task_id, _ in journal.of("durable")}) == 500)
    assert journal.of("dispatch") == []
    turns = 0
    handle = manager.machine.handle

    def counted(event: events.Event, now: float) -> Any:
        nonlocal turns
        turns += 1
        return handle(event, now)

    monkeypatch.setattr(manager.machine, "handle", counted)
    manager.post(events.SnapshotTaken(snapshot("a", SystemClock().now(), 600)))
    await eventually(lambda: len(journal.of("dispatch")) == 500)
    assert turns > 1
    manager.stop_timers()


async def test_other_work_of_the_loop_gets_its_turn_between_many_events() -> None:
    manager, journal, _ = make(cpus=0.5)
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    for number in range(3000):
        manager.post(events.Submitted(task(f"t{number}", 5)))
    before = turns
    await eventually(lambda: ("durable", ("t2999", TaskState.PENDING)) in journal.lines)
    assert turns - before >= 3
    ticking.cancel()
    manager.stop_timers()


async def test_events_from_other_threads_arrive_in_their_order() -> None:
    manager, journal, _ = make(cpus=10_000)

    def submit(name: str) -> None:
        for number in range(300):
            manager.post(events.Submitted(task(f"{name}-{number}")))

    threads = [threading.Thread(target=submit, args=(name,)) for name in ("x", "y", "z")]
    for thread in threads:
        thread.start()
    await eventually(lambda: len(journal.of("dispatch")) == 900)
    for thread in threads:
        thread.join()
    for name in ("x", "y", "z"):
        mine = [order.task_id for order in journal.of("dispatch") if order.task_id.startswith(f"{name}-")]
        assert mine == [f"{name}-{number}" for number in range(300)]
    manager.stop_timers()


async def test_a_thread_that_submits_many_items_pauses_briefly_and_never_blocks() -> None:
    class Pauses(threading.Event):
        taken = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.taken += 1
            return False

    manager, _, _ = make()
    await eventually(lambda: not manager._inbox)
    manager._caught_up = pauses = Pauses()
    for number in range(100):
        manager.post(events.Submitted(task(f"t{number}")))  # nothing is handled meanwhile: we are on the loop
        manager.throttle()
    assert pauses.taken == 3
    await eventually(lambda: not manager._inbox)
    assert pauses.is_set()
    for _ in range(100):
        manager.throttle()
    assert pauses.taken == 3  # nothing waits
    manager.stop_timers()


async def test_an_attempt_reaches_the_runner_before_its_end_is_requested() -> None:
    manager, journal, _ = make()
    manager.post(events.Submitted(task("t1")))
    manager.post(events.CancelRequested("t1", "by the test"))
    await eventually(lambda: journal.of("cancel"))
    kinds = [line for line, _ in journal.lines if line in ("dispatch", "cancel")]
    assert kinds == ["dispatch", "cancel"]
    manager.stop_timers()


async def test_a_snapshot_of_an_unseen_cluster_is_requested() -> None:
    manager, journal, _ = make(cpus=None)
    manager.post(events.Submitted(task("t1")))
    await eventually(lambda: journal.of("refresh"))
    assert journal.of("refresh") == ["a"]
    manager.stop_timers()


async def test_the_dashboard_of_a_linked_cluster_is_checked_now_and_then() -> None:
    manager, journal, _ = make(health_check_interval_s=0.02)
    manager.post(events.Submitted(task("t1")))
    await eventually(lambda: journal.of("check"))
    assert journal.of("check") == ["a"]
    manager.stop_timers()


async def test_a_defect_in_the_machine_is_reported_and_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, journal, failures = make()
    await eventually(lambda: manager.machine.registry.latest_snapshot("a"))
    handle = manager.machine.handle

    def broken(event: events.Event, now: float) -> Any:
        if isinstance(event, events.CancelRequested):
            raise ZeroDivisionError("a defect")
        return handle(event, now)

    monkeypatch.setattr(manager.machine, "handle", broken)
    manager.post(events.CancelRequested("t1", ""))
    await eventually(lambda: failures)
    assert isinstance(failures[0], ZeroDivisionError)
    manager.post(events.Submitted(task("late")))
    await asyncio.sleep(0.02)
    assert journal.of("durable") == []
    assert len(failures) == 1
    manager.stop_timers()


async def test_the_log_forgets_an_item() -> None:
    manager, journal, _ = make()
    manager.post(events.Submitted(task("t1")))
    await eventually(lambda: journal.of("dispatch"))
    manager.log.forget("t1")
    assert manager.log.history("t1") == []
    assert manager.log.decision("t1") is None
    manager.stop_timers()


async def test_every_instruction_is_seen_to_in_one_place() -> None:
    manager, _, _ = make()
    places = [{Persist, Dispatch}, set(manager._internal_handlers), set(manager._effect_handlers)]
    assert set().union(*places) == set(get_args(Instruction))
    assert sum(map(len, places)) == len(get_args(Instruction))
    manager.stop_timers()

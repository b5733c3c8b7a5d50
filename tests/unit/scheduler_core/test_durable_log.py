"""DurableLog and the records of rows: what is done waits for what is durable, and what is durable comes back whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.control_plane.store import Outcome, SqliteStore, Step, StoredItem
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import Trouble
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Complete, Dispatch, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow
from ray_multicluster_scheduler.scheduler.lifecycle.task_lifecycle_manager import TaskLifecycleManager
from ray_multicluster_scheduler.scheduler.scheduler_core import stored_rows
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog
from ray_multicluster_scheduler.simulation.faulty.campaign import play
from ray_multicluster_scheduler.simulation.faulty.script import make_script
from tests.support.eventually import eventually
from tests.support.watched_disk import WatchedDisk
from tests.unit.lifecycle.driver import FREE, cluster, snapshot, task


class World:
    """A control plane on one store: hands and audience only write down what they hear."""

    def __init__(self, folder: Path, disk: WatchedDisk | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.store = SqliteStore(folder, vfs=None if disk is None else disk.name)
        self.machine = SchedulerMachine(Settings(**FREE), [cluster("a"), cluster("b")])
        self.failures: list[BaseException] = []
        self.sent: list[Dispatch] = []
        self.heard: list[tuple[str, TaskState]] = []
        self.over: list[Complete] = []
        self.cancelled: list[CancelAttempt] = []
        self.clock = SystemClock()
        self.log = DurableLog(
            self.store,
            self.machine,
            lambda deed: loop.call_soon_threadsafe(lambda: self.manager.guarded(deed)),
            lambda error: self.manager.fail(error),  # noqa: PLW0108 - it is made below
        )
        self.manager = TaskLifecycleManager(self.machine, self.log, self.clock, self)
        self.manager.use(self, self.failures.append)  # type: ignore[arg-type]

    def see(self, *names: str) -> None:
        for name in names:
            self.manager.post(events.LinkUp(name, "3.11.9", "2.60.0", "s1"))
            self.manager.post(events.SnapshotTaken(snapshot(name, self.clock.now(), 4)))

    def submit(self, *names: str, **values: Any) -> None:
        for name in names:
            self.manager.post(events.Submitted(task(name, **values)))

    def end(self) -> None:
        self.manager.stop_timers()
        self.store.close()

    # hands and audience

    def dispatch(self, orders: list[Dispatch]) -> None:
        self.sent += orders

    def cancel(self, order: CancelAttempt) -> None:
        self.cancelled.append(order)

    def transition(self, transition: Transition) -> None:
        self.heard.append((transition.task_id, transition.state))

    def completed(self, completion: Complete) -> None:
        self.over.append(completion)

    def refresh(self, name: str) -> None: ...

    def check_dashboard(self, name: str) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_an_item_from_submission_to_its_end(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.log.accept("t", {"f": b"code", "x": b"data"}, ["x"])
    world.submit("t")
    await eventually(lambda: world.sent)
    world.manager.post(events.DispatchAccepted("t", 1))
    world.manager.post(events.Started("t", 1, world.clock.now(), "n1"))
    world.log.ended(Outcome("t", 1, b'{"status": "succeeded"}', "v"))
    world.manager.post(events.AttemptFinished("t", 1, "succeeded"))
    await eventually(lambda: world.over)
    states = ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]
    assert [state for _, state in world.heard] == states
    assert [step.state for step in world.log.history("t")] == states
    assert [step.state for _, step in world.store.steps_after(0, 10)] == states
    found = world.store.item("t")
    assert found is not None
    assert (found.now.state, found.now.cluster, found.now.attempt) == (TaskState.SUCCEEDED, "a", 1)
    assert stored_rows.task_of(found) == (task("t"), ("x",))
    assert set(found.new.blobs) == {one for one in (*task("t").payloads, "x") if one is not None}
    decision = world.log.decision("t")
    assert decision is not None
    assert (decision.task_id, decision.cluster, len(decision.candidates)) == ("t", "a", 2)
    assert world.store.outcome("t") == Outcome("t", 1, b'{"status": "succeeded"}', "v")
    assert world.store.blob("x") == b"data"
    assert list(world.store.unfinished()) == []
    assert world.log.decision("x") is None
    world.log.forget("t")
    assert world.failures == []
    world.end()


async def test_nothing_is_sent_or_told_before_it_is_durable_and_then_all_in_order(folder: Path) -> None:
    disk = WatchedDisk()
    world = World(folder, disk)
    world.see("a")
    await eventually(lambda: world.machine.view("a", world.clock.now()).known)
    disk.full = True
    world.submit("t1", "t2")
    await eventually(lambda: world.store.trouble is not None)
    world.submit("t3")
    world.manager.post(events.CancelRequested("t1", "not wanted", False))
    await eventually(lambda: world.machine.record("t1").ending is not None)
    assert (world.sent, world.heard, world.over, world.cancelled) == ([], [], [], [])
    disk.full = False
    await eventually(lambda: world.cancelled, timeout=20)
    assert [order.task_id for order in world.sent] == ["t1", "t2", "t3"]
    assert world.heard[:2] == [("t1", TaskState.PENDING), ("t1", TaskState.QUEUED)]
    assert world.store.trouble is None
    world.end()


async def test_what_is_said_without_anything_to_write_waits_for_what_was_said_before(folder: Path) -> None:
    disk = WatchedDisk()
    world = World(folder, disk)
    disk.full = True
    world.submit("t")
    await eventually(lambda: world.store.trouble is not None)
    done: list[str] = []
    world.log.then(lambda: done.append("later"))
    world.log.flush()
    assert done == []
    disk.full = False
    await eventually(lambda: done)
    assert world.heard
    world.end()


async def test_when_nothing_can_be_written_any_more_the_control_plane_stops(folder: Path) -> None:
    disk = WatchedDisk()
    world = World(folder, disk)
    world.see("a")
    disk.broken = True
    world.submit("t")
    await eventually(lambda: world.failures)
    assert isinstance(world.failures[0], StoreError)
    assert world.sent == []
    disk.broken = False
    world.submit("u")
    await asyncio.sleep(0.05)
    assert (world.sent, world.heard, len(world.failures)) == ([], [], 1)
    world.end()


async def test_the_next_process_goes_on_from_what_was_durable(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.submit("sent", cpus=4)
    await eventually(lambda: world.sent)
    world.submit("waits", cpus=4)
    world.manager.post(events.PriorityChanged("waits", 7))
    world.manager.post(events.CordonChanged("b", True))
    await eventually(lambda: ("waits", TaskState.QUEUED) in world.heard)
    await eventually(lambda: world.store.fleet().clusters)
    before = {one.task.id: world.machine.row(one.task.id) for one in world.machine.records()}
    fence = world.machine.next_fence
    world.end()
    after = World(folder)
    restored = after.log.restored()
    assert {row.task.id: row for row in restored.items} == before
    assert restored.next_fence == fence
    after.manager.post(restored)
    await eventually(lambda: len(list(after.machine.records())) == 2)
    assert after.machine.record("waits").wanted.priority == 7
    assert after.machine.registry.state("b").cordoned
    assert after.machine.row("sent") == before["sent"]
    await eventually(lambda: after.sent)
    assert [(one.task_id, one.attempt, one.fence, one.cluster, one.again) for one in after.sent] == [
        ("sent", 1, before["sent"].fence, "a", True)
    ]
    after.end()


# ---- rows


def round_trip(row: ItemRow) -> ItemRow:
    new, now = stored_rows.new_item(row.task, row.number), stored_rows.item_now(row)
    decision = None if row.decision is None else stored_rows.decided(row.task.id, row.attempt, row.decision)
    return stored_rows.item_row(StoredItem(new, now), [Step(*one) for one in row.history], decision)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ItemRow]:
    """Every row that a machine gives away; each has come back as it was."""
    rows: list[ItemRow] = []
    give = SchedulerMachine.row

    def checked(machine: SchedulerMachine, task_id: str) -> ItemRow:
        row = give(machine, task_id)
        assert round_trip(row) == row
        rows.append(row)
        return row

    monkeypatch.setattr(SchedulerMachine, "row", checked)
    return rows


def test_every_row_of_faulty_runs_comes_back_as_it_was_whatever_is_in_it(seen: list[ItemRow]) -> None:
    for seed in range(6):
        play(make_script(seed))
    for name in ("earlier_fences", "ending", "failures", "holding", "parts", "given_up", "after", "retry_at"):
        assert any(getattr(row, name) for row in seen), name
    assert {row.task.kind for row in seen} == {"task", "actor", "job", "gang"}


def test_what_people_said_comes_back() -> None:
    clusters = (ClusterRow("a", True), ClusterRow("b", False, "tests", Trouble("X", "burnt", at=3.0)), ClusterRow("c"))
    owners = (OwnerRow("ann", "holiday"),)
    assert stored_rows.fleet_rows(stored_rows.fleet_now(clusters, owners)) == (clusters[:2], owners)

"""DurableLog and the records of rows: what is done waits for what is durable, and what is durable comes back whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.exception import StoreError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.control_plane.store import Change, Outcome, SqliteStore, Step, StoredItem
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Complete,
    Dispatch,
    Transition,
)
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, PoolRow
from ray_multicluster_scheduler.scheduler.lifecycle.task_lifecycle_manager import TaskLifecycleManager
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.scheduler_core import record_codec
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog
from ray_multicluster_scheduler.simulation.faulty.campaign import play
from ray_multicluster_scheduler.simulation.faulty.scenario import STYLES, generate_scenario
from tests.support.eventually import eventually
from tests.support.watched_disk import WatchedDisk
from tests.unit.lifecycle.driver import FREE, Driver, cluster, snapshot, task


class World:
    """A control plane on one store: executor and subscribers only write down what they hear."""

    def __init__(self, folder: Path, disk: WatchedDisk | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.store = SqliteStore(folder, vfs=None if disk is None else disk.name)
        self.machine = SchedulerMachine(Settings(**FREE), [cluster("a"), cluster("b")])
        self.failures: list[BaseException] = []
        self.sent: list[Dispatch] = []
        self.received: list[tuple[str, TaskState]] = []
        self.over: list[Complete] = []
        self.cancelled: list[CancelAttempt] = []
        self.adopted: list[AdoptAttempt] = []
        self.clock = SystemClock()
        self.log = DurableLog(
            self.store,
            self.machine,
            lambda action: loop.call_soon_threadsafe(lambda: self.manager.run_guarded(action)),
            lambda error: self.manager.fail(error),  # noqa: PLW0108 - it is made below
        )
        self.manager = TaskLifecycleManager(self.machine, self.log, self.clock, self)
        self.manager.connect_executor(self, self.failures.append)  # type: ignore[arg-type]

    def see(self, *names: str) -> None:
        for name in names:
            self.manager.post(events.LinkUp(name, "3.11.9", "2.60.0", "s1"))
            self.manager.post(events.SnapshotTaken(snapshot(name, self.clock.now(), 4)))

    def submit(self, *names: str, blobs: Mapping[str, bytes] | None = None, **values: Any) -> None:
        for name in names:
            item = task(name, **values)
            self.log.accept(
                item, {**{one: b"" for one in item.payload_digests if one}, **(blobs or {})}, list(blobs or ())
            )
            self.manager.post(events.Submitted(item))

    def end(self) -> None:
        self.manager.stop_timers()
        self.store.close()

    # executor and subscribers

    def dispatch(self, orders: list[Dispatch]) -> None:
        self.sent += orders

    def cancel(self, order: CancelAttempt) -> None:
        self.cancelled.append(order)

    def transition(self, transition: Transition) -> None:
        self.received.append((transition.task_id, transition.state))

    def completed(self, completion: Complete) -> None:
        self.over.append(completion)

    def adopt(self, order: AdoptAttempt) -> None:
        self.adopted.append(order)

    def refresh(self, name: str) -> None: ...

    def check_dashboard(self, name: str) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def test_an_item_from_submission_to_its_end(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.submit("t", blobs={"x": b"data"})
    await eventually(lambda: world.sent)
    world.manager.post(events.DispatchAccepted("t", 1))
    world.manager.post(events.Started("t", 1, world.clock.now(), "n1"))
    world.log.add_outcome(Outcome("t", 1, b'{"status": "succeeded"}', "v"))
    world.manager.post(events.AttemptFinished("t", 1, "succeeded"))
    await eventually(lambda: world.over)
    states = ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]
    assert [state for _, state in world.received] == states
    assert [step.state for step in world.log.history("t")] == states
    assert [one.entry.state for one in world.store.events_after(0, 10) if isinstance(one.entry, Step)] == states
    found = world.store.item("t")
    assert found is not None
    assert (found.status.state, found.status.cluster, found.status.attempt) == (TaskState.SUCCEEDED, "a", 1)
    assert record_codec.decode_task(found) == (task("t"), ("x",))
    assert set(found.new.blobs) == {one for one in (*task("t").payload_digests, "x") if one is not None}
    decision = world.log.decision("t")
    assert decision is not None
    assert (decision.task_id, decision.cluster, len(decision.candidates)) == ("t", "a", 2)
    assert world.store.outcome("t") == Outcome("t", 1, b'{"status": "succeeded"}', "v")
    assert world.store.blob("x") == b"data"
    assert list(world.store.open_items()) == []
    assert world.log.decision("x") is None
    world.log.forget("t")
    assert world.failures == []
    world.end()


async def on_a_full_disk(folder: Path, disk: WatchedDisk, *task_ids: str) -> World:
    """A machine that has seen cluster a, and was given these items when nothing could be written any more."""
    world = World(folder, disk)
    world.see("a")
    await eventually(lambda: world.machine.view("a", world.clock.now()).has_snapshot)
    disk.full = True
    world.submit(*task_ids)
    await eventually(lambda: world.store.write_problem is not None)
    return world


async def test_effects_and_events_wait_until_durable_and_keep_their_order(folder: Path) -> None:
    disk = WatchedDisk()
    world = await on_a_full_disk(folder, disk, "t1", "t2")
    world.submit("t3")
    world.manager.post(events.CancelRequested("t1", "not wanted", False))
    await eventually(lambda: world.machine.record("t1").ending is not None)
    assert (world.sent, world.received, world.over, world.cancelled) == ([], [], [], [])
    disk.full = False
    await eventually(lambda: world.cancelled, timeout=20)
    assert [order.task_id for order in world.sent] == ["t1", "t2", "t3"]
    assert world.received[:2] == [("t1", TaskState.PENDING), ("t1", TaskState.QUEUED)]
    assert world.store.write_problem is None
    world.end()


async def test_an_effect_without_writes_waits_for_earlier_writes(folder: Path) -> None:
    disk = WatchedDisk()
    world = World(folder, disk)
    disk.full = True
    world.submit("t")
    await eventually(lambda: world.store.write_problem is not None)
    done: list[str] = []
    world.log.after_durable(lambda: done.append("later"))
    world.log.flush()
    assert done == []
    disk.full = False
    await eventually(lambda: done)
    assert world.received
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
    assert (world.sent, world.received, len(world.failures)) == ([], [], 1)
    world.end()


async def test_the_next_process_goes_on_from_what_was_durable(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.submit("sent", cpus=4)
    await eventually(lambda: world.sent)
    world.submit("waits", cpus=4)
    world.manager.post(events.PriorityChanged("waits", 7))
    world.manager.post(events.CordonChanged("b", True))
    await eventually(lambda: ("waits", TaskState.QUEUED) in world.received)
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
    new = record_codec.new_item(row.task, row.number, record_codec.encode_description(row.task))
    now = record_codec.encode_status(row)
    decision = (
        None if row.decision is None else record_codec.DecisionEncoder().encode(row.task.id, row.attempt, row.decision)
    )
    return record_codec.decode_row(StoredItem(new, now), [Step(*one) for one in row.history], decision)


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
        play(generate_scenario(seed))
    for seed in range(3):
        play(generate_scenario(seed, style=STYLES["pools"]))
    names = "earlier_fences ending failures holding parts given_up after retry_at pool room saved preempted_at resumes"
    for name in names.split():
        assert any(getattr(row, name) for row in seen), name
    assert {row.task.kind for row in seen} == {"task", "actor", "job", "gang"}


def test_operators_orders_are_restored() -> None:
    clusters = (
        ClusterRow("a", True),
        ClusterRow("b", False, "tests", ClusterProblem("X", "burnt", at=3.0)),
        ClusterRow("c"),
    )
    owners = (OwnerRow("ann", "holiday"),)
    pools = (PoolRow("p", Pool(name="p", quota={"CPU": 2.0}, owners=("ann",))), PoolRow("gone"))
    absent = record_codec.encode_fleet([ClusterRow("away", True), ClusterRow("a", False, "x")], [], [], {}).clusters
    stored = record_codec.encode_fleet(clusters, owners, pools, absent)
    assert record_codec.decode_fleet(stored) == ((ClusterRow("away", True), *clusters[:2]), owners, pools)


def test_documents_of_a_later_version_may_have_more_in_them() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t"))
    row_now = driver.machine.row("t")
    new = record_codec.new_item(row_now.task, 1, record_codec.encode_description(row_now.task))
    more = json.loads(new.description)
    more["task"]["colour"], more["v"] = "red", 2
    now = record_codec.encode_status(row_now)
    stored = StoredItem(
        new._replace(description=json.dumps(more).encode()),
        now._replace(rest=json.dumps({**json.loads(now.rest), "mood": "good"}).encode()),
    )
    assert record_codec.decode_row(stored, [Step(*one) for one in row_now.history], None) == row_now


# ---- what must not stop everything


async def test_words_that_are_no_text_are_spelt_out(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.submit("t", name="caf\udce9")
    await eventually(lambda: world.sent)
    world.manager.post(events.DispatchAccepted("t", 1))
    sentence = "no such file: 'caf\udce9'"
    world.manager.post(
        events.AttemptFinished("t", 1, "failed", FailureClass.USER, "FileNotFoundError", "USER", sentence)
    )
    await eventually(lambda: world.over)
    assert "caf\\udce9" in world.store.steps("t")[-1].sentence
    found = world.store.item("t")
    assert found is not None
    assert record_codec.decode_task(found)[0].name == "caf\udce9"
    world.end()


async def test_what_cannot_be_written_down_is_refused_before_it_is_submitted(folder: Path) -> None:
    world = World(folder)
    with pytest.raises(TaskSubmissionError, match="cannot be stored"):
        world.submit("t", runtime_env={"env_vars": {"A": object()}})
    with pytest.raises(TaskSubmissionError, match="payload gone of task u is not here"):
        world.log.accept(task("u", function_digest="gone"), {})
    world.submit("v")
    await eventually(lambda: world.received)
    assert {name for name, _ in world.received} == {"v"}
    world.end()


async def test_numbers_go_on_after_items_that_are_over(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.submit("t1", "t2")
    await eventually(lambda: len(world.sent) == 2)
    world.manager.post(events.AttemptFinished("t2", 1, "succeeded"))
    await eventually(lambda: world.over)
    world.end()
    after = World(folder)
    after.manager.post(after.log.restored())
    after.submit("t3")
    await eventually(lambda: after.store.item("t3"))
    assert after.failures == []
    assert [one.new.number for one in after.store.open_items()] == [1, 3]
    after.end()


async def test_who_waits_for_an_item_that_is_over_hears_of_it_after_a_restart(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.submit("first")
    await eventually(lambda: world.sent)
    world.submit("second", after=("first",))
    await eventually(lambda: ("second", TaskState.PENDING) in world.received)
    world.end()
    store = SqliteStore(folder)  # killed after the end of the first was durable, and before the second was reported
    found = store.item("first")
    assert found is not None
    now = found.status._replace(state=TaskState.SUCCEEDED, finished_at=9.0, is_open=False, rest=b'{"v": 1}')
    last = store.steps("first")[-1]
    step = last._replace(number=last.number + 1, state=TaskState.SUCCEEDED, code="SUCCEEDED")
    store.write(Change(statuses={"first": now}, entries=[step])).result()
    store.close()
    after = World(folder)
    restored = after.log.restored()
    assert {row.task.id for row in restored.items} == {"first", "second"}
    after.see("a")
    after.manager.post(restored)
    await eventually(lambda: after.sent)
    assert [one.task_id for one in after.sent] == ["second"]
    after.end()


async def test_what_runs_is_adopted_after_a_restart(folder: Path) -> None:
    world = World(folder)
    world.see("a")
    world.submit("t")
    await eventually(lambda: world.sent)
    world.manager.post(events.DispatchAccepted("t", 1))
    world.manager.post(events.Started("t", 1, world.clock.now(), "n1"))
    await eventually(lambda: ("t", TaskState.RUNNING) in world.received)
    world.end()
    after = World(folder)
    after.manager.post(after.log.restored())
    await eventually(lambda: after.adopted)
    assert [(one.task_id, one.attempt, one.cluster) for one in after.adopted] == [("t", 1, "a")]
    assert (after.sent, after.failures) == ([], [])
    after.end()


async def test_after_a_defect_nothing_that_waited_is_sent(folder: Path) -> None:
    disk = WatchedDisk()
    world = await on_a_full_disk(folder, disk, "t")
    world.manager.fail(RuntimeError("a defect"))
    disk.full = False
    await eventually(lambda: world.store.item("t") is not None, timeout=20)
    await asyncio.sleep(0.05)
    assert (world.sent, world.received) == ([], [])
    world.end()


async def test_orders_for_an_unconfigured_cluster_are_kept(folder: Path) -> None:
    store = SqliteStore(folder)
    store.write(Change(fleet=record_codec.encode_fleet([ClusterRow("gone", True)], [], [], {}))).result()
    store.close()
    world = World(folder)
    world.manager.post(events.CordonChanged("b", True))
    await eventually(lambda: "b" in world.store.fleet().clusters)
    assert set(world.store.fleet().clusters) == {"b", "gone"}
    world.end()


async def test_a_passive_reader_stops_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(folder)

    def fail(*_: object) -> None:
        raise ValueError("theirs")

    world.log.publish = fail
    world.see("a")
    world.submit("t")
    await eventually(lambda: world.sent)
    assert "could not be published" in caplog.text

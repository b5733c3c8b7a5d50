"""CrashingFleet: a fake fleet whose control plane dies now and then and goes on from what it had made durable.

Clusters live on meanwhile: what ended there is reported again on request, and what was on its way is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, PoolRow
from tests.unit.lifecycle.fake_fleet import FakeFleet

Key = tuple[str, int]


@dataclass
class CrashingFleet(FakeFleet):
    """``rows`` is all that the next process gets to know."""

    settings: Settings = field(default_factory=Settings)
    rows: dict[str, ItemRow] = field(default_factory=dict)
    people: tuple[tuple[ClusterRow, ...], tuple[OwnerRow, ...], tuple[PoolRow, ...]] = ((), (), ())
    unacknowledged: dict[Key, events.AttemptFinished] = field(default_factory=dict)
    moves: dict[Key, events.PlaceMoved] = field(default_factory=dict)
    dies_at_next: bool = False
    """When it has made durable what the next event brings, and done nothing of it."""
    crashes: int = 0

    def feed(self, event: events.Event) -> None:
        if isinstance(event, events.AttemptFinished):
            self.unacknowledged.pop((event.task_id, event.attempt), None)
        super().feed(event)

    def post(self, event: events.Event, *, delay: float | None = None) -> None:
        if isinstance(event, events.AttemptFinished):
            self.unacknowledged[event.task_id, event.attempt] = event
        if isinstance(event, events.PlaceMoved):
            self.moves[event.begun] = event
        super().post(event, delay=delay)

    def _carry_out(self, instructions: list[out.Instruction]) -> bool:
        durable = [one for one in instructions if isinstance(one, (out.Persist, out.Remember, out.RememberFleet))]
        for one in durable:
            if isinstance(one, out.RememberFleet):
                machine = self.machine
                self.people = machine.cluster_rows(), machine.owner_rows(), machine.pool_rows()
                continue
            task_id = one.transition.task_id if isinstance(one, out.Persist) else one.task_id
            self.rows[task_id] = self.machine.row(task_id)
        if self.dies_at_next:
            super()._carry_out(list(durable))
            self.crash()
            return False
        adopted = [one for one in instructions if isinstance(one, out.AdoptAttempt)]
        for one in adopted:
            self._tell_again((one.task_id, one.attempt), begun=True)
        return super()._carry_out(instructions)

    def _dispatch(self, one: out.Dispatch) -> None:
        if one.again and self._tell_again((one.task_id, one.attempt), begun=False):
            return
        if one.again:  # it never got there
            self.fences.remove(one.fence) if one.fence in self.fences else None
            later = [fence for fence in self.fences if fence > one.fence]
            self.fences = [fence for fence in self.fences if fence < one.fence]
            super()._dispatch(replace(one, again=False))
            self.fences += later
            return
        super()._dispatch(one)

    def _tell_again(self, key: Key, *, begun: bool) -> bool:
        """What the cluster knows of an attempt; False if it never heard of one that may be sent again."""
        one, end = self.live.get(key), self.unacknowledged.get(key)
        if key in self.moves:
            super().post(self.moves[key], delay=0)
        if one is not None:
            super().post(events.DispatchAccepted(*key))
            one.accepted = True
            if one.started:
                super().post(events.Started(*key, self.now, one.node))
        elif end is not None:
            super().post(end)
        elif begun:
            lost = events.AttemptFinished(*key, "failed", FailureClass.CLUSTER, code="LOST", sentence="nobody knows it")
            super().post(lost)
        else:
            return False
        return True

    def crash(self) -> None:
        """The process is gone, and another one takes over."""
        self.crashes += 1
        self.dies_at_next = False
        before = self.machine
        self.machine = SchedulerMachine(self.settings, before.registry.list())
        self.timers, self.mail, self.asked, self.waiting = {}, [], [], set()
        for task_id, row in self.rows.items():
            if row.state.terminal and not self.ends[task_id]:
                self.ends[task_id] += 1  # a caller that asks gets it
        restored = events.Restored(tuple(self.rows.values()), *self.people, before.next_fence)
        self.feed(restored)
        for metadata in self.machine.registry.list():
            if self.links.get(metadata.name) == "up":
                self.link(metadata.name, "up")
        for task_id, task in self.tasks.items():
            if task_id not in self.rows:
                self.feed(events.Submitted(task))  # its caller was not answered and says it again
        self.incomplete = [task_id for task_id, row in self.rows.items() if row.waits_for and not row.state.terminal]

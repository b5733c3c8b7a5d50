"""DurableLog: the machine's steps and rows in the store; effects wait until those before them are on the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.control_plane.store import Change, Outcome, Step, Store
from ray_multicluster_scheduler.scheduler.lifecycle.events import Restored
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.scheduler_core import stored_rows

Deed = Callable[[], object]


class DurableLog:
    """One change for all that comes between two calls of :meth:`flush`, so rows are as of the last event in it.

    ``soon`` runs something on the loop, from any thread; ``fail`` hears that nothing can be written any more.
    """

    def __init__(
        self,
        store: Store,
        machine: SchedulerMachine,
        soon: Callable[[Deed], object],
        fail: Callable[[BaseException], object],
    ) -> None:
        self._store, self._machine, self._soon, self._fail = store, machine, soon, fail
        self._change = Change()
        self._objects: dict[str, tuple[str, ...]] = {}
        self._fresh: set[str] = set()
        self._touched: set[str] = set()
        self._fleet_touched = False
        self._deeds: list[Deed] = []
        self._written: deque[tuple[Future[int] | None, list[Deed]]] = deque()

    # ---- what the lifecycle manager says

    def append(self, entries: Sequence[Persist]) -> None:
        for step, decision in entries:
            self._change.steps.append(Step(*step))
            self._touched.add(step.task_id)
            if step.number == 1:
                self._fresh.add(step.task_id)
            if decision is not None:
                self._change.decisions.append(stored_rows.decided(step.task_id, step.attempt, decision))

    def remember(self, task_id: str) -> None:
        self._touched.add(task_id)

    def remember_fleet(self) -> None:
        self._fleet_touched = True

    def then(self, deed: Deed) -> None:
        self._deeds.append(deed)

    def flush(self) -> None:
        change, deeds = self._whole_change(), self._deeds
        self._change, self._deeds = Change(), []
        if not change and not self._written:
            for deed in deeds:
                deed()
        elif not change:
            self._written.append((None, deeds))
        else:
            future = self._store.write(change)
            self._written.append((future, deeds))
            future.add_done_callback(lambda _: self._soon(self._release))

    # ---- what comes with items

    def accept(self, task_id: str, blobs: dict[str, bytes], objects: Sequence[str]) -> None:
        """Before it is submitted: small payloads to be written with it, and the names of values attached to it."""
        self._change.blobs.update(blobs)
        if objects:
            self._objects[task_id] = tuple(objects)

    def ended(self, outcome: Outcome) -> None:
        """Before its end is told to the machine: how an attempt ended."""
        self._change.outcomes.append(outcome)

    # ---- reading

    def history(self, task_id: str) -> list[Transition]:
        return [Transition(*step) for step in self._store.steps(task_id)]

    def decision(self, task_id: str) -> SchedulingDecision | None:
        stored = self._store.decisions(task_id)
        return replace(stored_rows.decision_of(stored[-1]), task_id=task_id) if stored else None

    def forget(self, task_id: str) -> None:
        """The store forgets by its own rules."""

    def restored(self) -> Restored:
        """All that is not over, for a machine that goes on from it."""
        items = []
        for stored in self._store.unfinished():
            decisions = self._store.decisions(stored.new.id)
            newest = decisions[-1] if decisions else None
            items.append(stored_rows.item_row(stored, self._store.steps(stored.new.id), newest))
        clusters, owners = stored_rows.fleet_rows(self._store.fleet())
        return Restored(tuple(items), clusters, owners, self._store.next_fence)

    # ---- inside

    def _whole_change(self) -> Change:
        change = self._change
        for task_id in self._touched:
            row = self._machine.row(task_id)
            change.now[task_id] = stored_rows.item_now(row)
            if task_id in self._fresh:
                change.new.append(stored_rows.new_item(row.task, row.number, self._objects.pop(task_id, ())))
        if self._touched:
            change.next_fence = self._machine.next_fence
        if self._fleet_touched:
            change.fleet = stored_rows.fleet_now(self._machine.cluster_rows(), self._machine.owner_rows())
        self._touched, self._fresh, self._fleet_touched = set(), set(), False
        return change

    def _release(self) -> None:
        """Do what waited for changes that are durable by now."""
        while self._written:
            future, deeds = self._written[0]
            if future is not None:
                if not future.done():
                    return
                error = future.exception()
                if error is not None:
                    self._written.clear()
                    self._fail(error)
                    return
            self._written.popleft()
            for deed in deeds:
                deed()

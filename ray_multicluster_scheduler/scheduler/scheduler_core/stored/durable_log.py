"""DurableLog: the machine's steps and rows in the store; effects wait until those before them are on the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from ray_multicluster_scheduler.common.blob_names import digest_of, package_digests_in
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.common.object_argument import is_put
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.control_plane.store import (
    Change,
    LogEntry,
    OperationRecord,
    Outcome,
    OutputRecord,
    Store,
    StoredItem,
)
from ray_multicluster_scheduler.scheduler.lifecycle.events import Restored
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Persist, Transition
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow, SentRow
from ray_multicluster_scheduler.scheduler.scheduler_core.stored import stored_rows
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_outcome import completion_of

_log = get_logger(__name__)
Deed = Callable[[], object]
Tell = Callable[[int, list[LogEntry]], object]


def tell_safely(tell: Tell, last: int, told: list[LogEntry]) -> None:
    """Nothing stops because somebody who only looks on cannot be told."""
    try:
        tell(last, told)
    except Exception:  # noqa: BLE001 - a defect of ours, of which the scheduler knows nothing
        _log.exception("what happened up to number %d could not be told", last)


def tell_nobody(last: int, told: list[LogEntry]) -> None:
    """Nobody listens yet."""


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
        configured = set(machine.registry.names())
        self._absent = {name: text for name, text in store.fleet().clusters.items() if name not in configured}
        self._change = Change()
        self._accepted: dict[str, tuple[bytes, tuple[str, ...]]] = {}
        self._fresh: dict[str, None] = {}
        self._touched: dict[str, None] = {}
        self._fleet_touched = False
        self._completions: dict[str, Complete] = {}
        """Of what the machine still knows: its row may have to be written again."""
        self._deeds: list[Deed] = []
        self._writer = stored_rows.DecisionWriter()
        self.attached: dict[str, tuple[str, ...]] = {}
        """After :meth:`restored`: the names of the values attached to what is not over."""
        self._woken = False
        self._written: deque[tuple[Future[int] | None, list[LogEntry], list[Deed]]] = deque()
        self.tell: Tell = tell_nobody
        """Hears what is durable, in its order, with the number of the last of it; on the loop."""

    # ---- before an item is submitted

    def accept(self, task: TaskDescription, blobs: Mapping[str, bytes], objects: Sequence[str] = ()) -> None:
        """It can be written, with these small payloads of its own; others are in the store already. ``objects`` names
        the values attached to it. On the loop, before the machine hears of it: afterwards nobody could refuse it.

        Raises TaskSubmissionError for what cannot be written or is not there, StoreFullError, and StoreError for
        secrets that cannot be sealed.
        """
        try:
            description = stored_rows.described(task, objects, self._store.cipher)
        except (TypeError, ValueError) as error:
            raise TaskSubmissionError(
                f"{task.kind} {task.id} cannot be written down: {error}.",
                task_id=task.id,
                next_step="use only text, numbers, lists and mappings in its options and its runtime_env",
            ) from error
        others = (*_digests(objects), *package_digests_in(task.runtime_env))
        named = [one for one in (*task.payload_digests, *others) if one is not None and one not in blobs]
        missing = self._store.pin_blobs(named)
        if missing:
            raise TaskSubmissionError(
                f"The payload {missing[0]} of {task.kind} {task.id} is not here (any more).",
                task_id=task.id,
                next_step="submit it again, with its payload",
            )
        self._store.reserve({digest: len(data) for digest, data in blobs.items()})
        self._accepted[task.id] = (description, tuple(objects))
        self._change.blobs.update(blobs)

    def take_back(self, task_id: str) -> None:
        """It was accepted and is not submitted: another one stands for it."""
        self._accepted.pop(task_id, None)

    def is_over(self, task_id: str) -> bool:
        """Does nobody wait for an answer of this item any more?"""
        try:
            return self._machine.record(task_id).state.terminal
        except KeyError:
            return True

    def ended(self, outcome: Outcome, blobs: Mapping[str, bytes] | None = None) -> None:
        """Before its end is told to the machine: how an attempt ended, with its value if that is small. There is always
        room for what has been done already."""
        self._change.outcomes.append(outcome)
        if blobs:
            self._store.reserve({digest: len(data) for digest, data in blobs.items()}, beyond_quota=True)
            self._change.blobs.update(blobs)

    def note(self, note: OperationRecord) -> None:
        """On the loop: something else happened that is to be known; it is written with the next flush."""
        self._change.entries.append(note)

    def printed(self, item_id: str, attempt: int, document: bytes) -> None:
        """What an attempt printed, written with whatever is written next."""
        digest = digest_of(document)
        self._store.reserve({digest: len(document)}, beyond_quota=True)
        self._change.blobs[digest] = document
        self._change.output.append(OutputRecord(item_id, attempt, digest))

    # ---- what the lifecycle manager says

    def append(self, entries: Sequence[Persist]) -> None:
        for transition, decision in entries:
            if decision is not None:
                self._change.entries.append(self._writer.decided(transition.task_id, transition.attempt, decision))
            self._change.entries.append(stored_rows.step_of(transition))
            self._touched[transition.task_id] = None
            if transition.number == 1:
                self._fresh[transition.task_id] = None

    def persist_item(self, task_id: str) -> None:
        self._touched[task_id] = None

    def persist_fleet(self) -> None:
        self._fleet_touched = True

    def record_completion(self, completion: Complete) -> None:
        self._completions[completion.task_id] = completion
        self._touched[completion.task_id] = None

    def after_durable(self, deed: Deed) -> None:
        self._deeds.append(deed)

    def flush(self) -> None:
        change, deeds = self._whole_change(), self._deeds
        self._change, self._deeds = Change(), []
        if change:
            future = self._store.write(change)
            self._written.append((future, change.entries, deeds))
            future.add_done_callback(self._wake)
        elif self._written:
            self._written.append((None, [], deeds))
        else:
            for deed in deeds:
                deed()

    # ---- reading

    def history(self, task_id: str) -> list[Transition]:
        return [Transition(*step) for step in self._store.steps(task_id)]

    def decision(self, task_id: str) -> SchedulingDecision | None:
        stored = self._store.decisions(task_id)
        return replace(stored_rows.decision_of(stored[-1]), task_id=task_id) if stored else None

    def forget(self, task_id: str) -> None:
        """The store forgets by its own rules."""
        self._completions.pop(task_id, None)

    def restored(self, now: float = 0.0, interval_s: float = 0.0) -> Restored:
        """All of which something is still to be done, and what that waits for, for a machine that goes on from it; and
        when each cluster was given something, as far as that matters to a submission interval of so many seconds."""
        rows = {stored.new.id: self._row(stored) for stored in self._store.open_items()}
        awaited = {one for row in rows.values() for one in row.after if one not in rows}
        for stored in map(self._store.item, sorted(awaited)):
            if stored is not None:
                rows[stored.new.id] = self._row(stored)
        clusters, owners = stored_rows.fleet_rows(self._store.fleet())
        counters = self._store.next_fence, self._store.next_number
        sent = tuple(self._sent(now - interval_s)) if interval_s else ()
        return Restored(tuple(rows.values()), clusters, owners, *counters, sent)

    # ---- inside

    def _sent(self, since: float) -> Iterator[SentRow]:
        for item_id, cluster, at in self._store.last_dispatches_since(since):
            stored = self._store.item(item_id)
            if stored is not None:
                yield SentRow(stored_rows.task_of(stored)[0].base_kind, cluster, at)

    def _row(self, stored: StoredItem) -> ItemRow:
        completion = completion_of(stored)
        if completion is not None:
            self._completions[stored.new.id] = completion
        _, objects = stored_rows.task_of(stored)
        if objects:
            self.attached[stored.new.id] = objects
        decisions = self._store.decisions(stored.new.id)
        decision = decisions[-1] if decisions else None
        return stored_rows.item_row(stored, self._store.steps(stored.new.id), decision, self._store.cipher)

    def _whole_change(self) -> Change:
        change = self._change
        for task_id in self._touched:
            row = self._machine.row(task_id)
            change.statuses[task_id] = stored_rows.item_now(row, self._completions.get(task_id))
            if task_id in self._fresh:
                description, objects = self._accepted.pop(task_id)
                change.new.append(stored_rows.new_item(row.task, row.number, description, _digests(objects)))
        if self._touched:
            change.next_fence = self._machine.next_fence
        if self._fleet_touched:
            said = self._machine.cluster_rows(), self._machine.owner_rows()
            change.fleet = stored_rows.fleet_now(*said, self._absent)
        self._touched, self._fresh, self._fleet_touched = {}, {}, False
        return change

    def _wake(self, _: Future[int]) -> None:
        """On the writer's thread: once for all that it makes durable at once."""
        if not self._woken:
            self._woken = True
            self._soon(self._release)

    def _release(self) -> None:
        """Do what waited for changes that are durable by now."""
        self._woken = False  # before anything is looked at: whoever comes later wakes us again
        while self._written:
            future, told, deeds = self._written[0]
            if future is not None:
                if not future.done():
                    return
                error = future.exception()
                if error is not None:
                    self._written.clear()
                    self._fail(error)
                    return
            self._written.popleft()
            crash_point("after commit")
            for deed in deeds:
                deed()
            if future is not None and told:  # whoever only looks on comes last
                tell_safely(self.tell, future.result(), told)


def _digests(objects: Sequence[str]) -> list[str]:
    """Those that are not the values of other items, which are where those are."""
    return [name for name in objects if is_put(name)]

"""DurableLog: writes steps and rows of the machine to the store; effects wait until what precedes them is durable."""

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
from ray_multicluster_scheduler.scheduler.scheduler_core import record_codec

_log = get_logger(__name__)
Callback = Callable[[], object]
Publish = Callable[[int, list[LogEntry]], object]
"""Gets log entries, and the number of the last one."""

TURNS_S = 60.0
"""After a restart the clusters go on taking turns by what was sent to them in this time."""


def publish_safely(publish: Publish, last: int, entries: list[LogEntry]) -> None:
    """Publish, and only log an exception: a defect of a subscriber must not stop the scheduler."""
    try:
        publish(last, entries)
    except Exception:  # noqa: BLE001 - see above
        _log.exception("events up to number %d could not be published", last)


def publish_nothing(last: int, entries: list[LogEntry]) -> None:
    """The default, until there is a publisher."""


class DurableLog:
    """A TransitionLog in the store. Used on one loop.

    Everything between two calls of :meth:`flush` becomes one change, so rows are as of the last event in it. ``soon``
    schedules a callback on the loop, from any thread; ``fail`` is called when the store has failed.
    """

    def __init__(
        self,
        store: Store,
        machine: SchedulerMachine,
        soon: Callable[[Callback], object],
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
        """Of items that the machine still holds: their rows may be written again."""
        self._callbacks: list[Callback] = []
        self._decisions = record_codec.DecisionEncoder()
        self.attached: dict[str, tuple[str, ...]] = {}
        """After :meth:`restored`: the names of the values attached to open items."""
        self._woken = False
        self._written: deque[tuple[Future[int] | None, list[LogEntry], list[Callback]]] = deque()
        self.publish: Publish = publish_nothing
        """Called on the loop with durable entries, in order."""

    # ---- before an item is submitted

    def accept(self, task: TaskDescription, blobs: Mapping[str, bytes], objects: Sequence[str] = ()) -> None:
        """Check that an item can be written, and reserve space for its small payloads; large ones are in the store
        already. ``objects`` names its attached values. Call it before the machine gets the item, which cannot be
        refused afterwards.

        Raises TaskSubmissionError for an item that cannot be encoded or whose payload is missing, StoreFullError, and
        StoreError for secrets that cannot be encrypted.
        """
        try:
            description = record_codec.encode_description(task, objects, self._store.cipher)
        except (TypeError, ValueError) as error:
            raise TaskSubmissionError(
                f"{task.kind} {task.id} cannot be stored: {error}.",
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

    def withdraw(self, task_id: str) -> None:
        """Undo :meth:`accept` for an item that is not submitted, because an equal one exists."""
        self._accepted.pop(task_id, None)

    def is_over(self, task_id: str) -> bool:
        """Whether the item has ended or is forgotten."""
        try:
            return self._machine.record(task_id).state.terminal
        except KeyError:
            return True

    def add_outcome(self, outcome: Outcome, blobs: Mapping[str, bytes] | None = None) -> None:
        """Add the outcome of an attempt, with its value if that is small, before the machine gets the event. Results of
        finished work ignore the quota."""
        self._change.outcomes.append(outcome)
        if blobs:
            self._store.reserve({digest: len(data) for digest, data in blobs.items()}, beyond_quota=True)
            self._change.blobs.update(blobs)

    def record_operation(self, operation: OperationRecord) -> None:
        """Add an event of no item, to be written with the next flush."""
        self._change.entries.append(operation)

    def add_output(self, item_id: str, attempt: int, document: bytes) -> None:
        """Add output of an attempt, to be written with the next flush."""
        digest = digest_of(document)
        self._store.reserve({digest: len(document)}, beyond_quota=True)
        self._change.blobs[digest] = document
        self._change.output.append(OutputRecord(item_id, attempt, digest))

    # ---- calls of the lifecycle manager

    def append(self, entries: Sequence[Persist]) -> None:
        for transition, decision in entries:
            if decision is not None:
                self._change.entries.append(self._decisions.encode(transition.task_id, transition.attempt, decision))
            self._change.entries.append(record_codec.encode_step(transition))
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

    def after_durable(self, callback: Callback) -> None:
        self._callbacks.append(callback)

    def flush(self) -> None:
        change, callbacks = self._complete_change(), self._callbacks
        self._change, self._callbacks = Change(), []
        if change:
            future = self._store.write(change)
            self._written.append((future, change.entries, callbacks))
            future.add_done_callback(self._wake)
        elif self._written:
            self._written.append((None, [], callbacks))
        else:
            for callback in callbacks:
                callback()

    # ---- reading

    def history(self, task_id: str) -> list[Transition]:
        return [Transition(*step) for step in self._store.steps(task_id)]

    def decision(self, task_id: str) -> SchedulingDecision | None:
        stored = self._store.decisions(task_id)
        return replace(record_codec.decode_decision(stored[-1]), task_id=task_id) if stored else None

    def forget(self, task_id: str) -> None:
        """Forget the completion; retention of the store deletes the rest."""
        self._completions.pop(task_id, None)

    def restored(self, now: float = 0.0, interval_s: float = 0.0) -> Restored:
        """The state for a new machine: open items and those that they wait for, the fleet, counters, and the last
        dispatches to each cluster within the submission interval ``interval_s``, or within the last minute, so that
        clusters with near-equal scores go on taking turns."""
        rows = {stored.new.id: self._row(stored) for stored in self._store.open_items()}
        awaited = {one for row in rows.values() for one in row.after if one not in rows}
        for stored in map(self._store.item, sorted(awaited)):
            if stored is not None:
                rows[stored.new.id] = self._row(stored)
        fleet_rows = record_codec.decode_fleet(self._store.fleet())
        counters = self._store.next_fence, self._store.next_number
        sent = tuple(self._sent(now - max(interval_s, TURNS_S)))
        return Restored(tuple(rows.values()), *fleet_rows, *counters, sent)

    # ---- private

    def _sent(self, since: float) -> Iterator[SentRow]:
        for item_id, cluster, at in self._store.last_dispatches_since(since):
            stored = self._store.item(item_id)
            if stored is not None:
                yield SentRow(record_codec.decode_task(stored)[0].base_kind, cluster, at)

    def _row(self, stored: StoredItem) -> ItemRow:
        completion = record_codec.decode_completion(stored)
        if completion is not None:
            self._completions[stored.new.id] = completion
        _, objects = record_codec.decode_task(stored)
        if objects:
            self.attached[stored.new.id] = objects
        decisions = self._store.decisions(stored.new.id)
        decision = decisions[-1] if decisions else None
        return record_codec.decode_row(stored, self._store.steps(stored.new.id), decision, self._store.cipher)

    def _complete_change(self) -> Change:
        change = self._change
        for task_id in self._touched:
            row = self._machine.row(task_id)
            change.statuses[task_id] = record_codec.encode_status(row, self._completions.get(task_id))
            if task_id in self._fresh:
                description, objects = self._accepted.pop(task_id)
                change.new.append(record_codec.new_item(row.task, row.number, description, _digests(objects)))
        if self._touched:
            change.next_fence = self._machine.next_fence
        if self._fleet_touched:
            machine = self._machine
            rows = machine.cluster_rows(), machine.owner_rows(), machine.pool_rows()
            change.fleet = record_codec.encode_fleet(*rows, self._absent)
        self._touched, self._fresh, self._fleet_touched = {}, {}, False
        return change

    def _wake(self, _: Future[int]) -> None:
        """On the writer's thread: schedule one release for all changes of a commit."""
        if not self._woken:
            self._woken = True
            self._soon(self._release)

    def _release(self) -> None:
        """Run the callbacks of changes that are durable by now."""
        self._woken = False  # first, so that a later commit schedules another release
        while self._written:
            future, entries, callbacks = self._written[0]
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
            for callback in callbacks:
                callback()
            if future is not None and entries:  # after the callbacks: subscribers come last
                publish_safely(self.publish, future.result(), entries)


def _digests(objects: Sequence[str]) -> list[str]:
    """The digests of values that were put; values of other items are stored with those items."""
    return [name for name in objects if is_put(name)]

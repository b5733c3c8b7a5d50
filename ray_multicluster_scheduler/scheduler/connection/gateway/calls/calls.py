"""The calls of this agent: given to Ray once each, answered once each, kept until acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.gang_values import joined
from ray_multicluster_scheduler.common.model.resources import ResourceShape, shape_of
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import (
    BIG_BYTES,
    MOST_VALUE_BYTES,
    CallRecord,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import describe
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_executor import Hands
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_options import task_options
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key, Move
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.slots import Slots
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import Line
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.envelope import unpack
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.work_order import TaskOrder
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker import run_call

_FORCE_AFTER_S = 5.0
_KEPT_KINDS = 1000


class Calls:
    """Everything here happens on the event loop unless said otherwise. ``wake``: :meth:`collect` has something."""

    def __init__(self, cluster: str, own_modules: list[str], hands: Hands, wake: Callable[[], None]) -> None:
        self._cluster, self._own_modules, self._hands, self._wake = cluster, own_modules, hands, wake
        self.line = Line("", 0, "", 0.0)
        """Where workers dial; set once the agent listens."""
        self.records: dict[Key, CallRecord] = {}
        self.unacknowledged: dict[Key, CallRecord] = {}
        """Those that ended, in the order in which they did."""
        self.values: dict[Key, tuple[Any, float]] = {}
        """References to those that stay here until they are asked for, and since when."""
        self._slots = Slots()
        self._wrapper = ray.remote(run_call)
        self._remotes: dict[tuple[str, ResourceShape, str], Any] = {}
        self._environments: set[str] = set()
        """Those that Ray took a call for, so that the next will not block it."""
        self._in_a_row = 0
        self._ended: list[CallRecord] = []
        self._moves: list[Move] = []

    def accept(self, record: CallRecord) -> None:
        """Take the call of a task."""
        self.records[record.key] = record
        shape = shape_of(record.resources)
        if record.ahead:
            self._give(self._slots.wait(record.key, shape, overlap=record.ahead == "overlap"))
        else:
            self._give(self._slots.hold(record.key, shape))

    def start(self, keys: Iterable[Key]) -> None:
        """There are places for these."""
        for key in keys:
            self._give(self._slots.start(key))

    def recall(self, keys: Iterable[Key]) -> None:
        """Give these back if they wait here."""
        for key in keys:
            if self._slots.take_back(key):
                self.conclude(self.records[key], {"status": "cancelled", "code": m.RECALLED})

    def cancel(self, record: CallRecord, force: bool) -> None:
        """End a call: an interrupt first, and the worker's death if that does not help."""
        record.cancelled, record.force = True, record.force or force
        if self._slots.take_back(record.key):
            self.conclude(record, {"status": "cancelled"})
        elif record.ref is not None:
            self.stop(record, force)

    def forget(self, keys: Iterable[Key]) -> None:
        """The control plane has these results."""
        for key in keys:
            self.records.pop(key, None)
            self.unacknowledged.pop(key, None)

    def collect(self) -> tuple[list[Move], list[CallRecord]]:
        """Which places were handed on, and which calls ended, since last asked."""
        moves, self._moves = self._moves, []
        ended, self._ended = self._ended, []
        return moves, ended

    def moves(self) -> list[Move]:
        """Those that the control plane may not have heard of."""
        return [(key, record.moved_to) for key, record in self.unacknowledged.items() if record.moved_to is not None]

    def read_back(self, record: CallRecord) -> Future[bytes]:
        """Fetch a big result from the object store, off the event loop."""
        if record.gang is not None:
            members = record.gang.members
            return self._hands.beside(lambda: joined([_value_of(member) for member in members]))
        return self.read(record.ref)

    def read(self, ref: Any) -> Future[bytes]:
        """The same of any value."""
        return self._hands.beside(lambda: _read(ref))

    def complete(self, record: CallRecord, value: bytes | None, error: BaseException | None) -> None:
        """Ray is done with it."""
        if record.head is not None:
            return
        if value is None:
            self.conclude(record, describe(error, record.cancelled))
            return
        try:
            head, payload = unpack(value)
            self._settle_cancel(record, head)
        except Exception as problem:  # noqa: BLE001 - an answer that makes no sense is an answer, too
            self.conclude(record, describe(problem, record.cancelled))
            return
        if len(payload) <= BIG_BYTES:
            self.conclude(record, head, bytes(payload))
        elif record.keep and head["status"] == "succeeded" and len(payload) <= MOST_VALUE_BYTES:
            self.values[record.key] = (record.ref, time.monotonic())
            self.conclude(record, {**head, "kept": len(payload)})
        else:
            record.big_bytes = len(payload)
            self.conclude(record, head, None)

    def conclude(self, record: CallRecord, head: dict[str, Any], payload: bytes | None = b"") -> None:
        """It is over, and this is its answer; None for the payload: it is in the object store."""
        for timer in record.timers:
            timer.cancel()
        record.head, record.payload = head, payload
        record.arguments, record.function, record.objects = b"", None, []
        if payload is not None:
            record.ref = None
        if record.told is not None:
            record.told(record)
            return
        self.unacknowledged[record.key] = record
        self._ended.append(record)
        if record.actor is None and record.method is None:
            heir, given = self._slots.ended(record.key, head.get("took"))
            if heir is not None:
                record.moved_to = heir
                self._moves.append((record.key, heir))
            self._give(given)
        self._wake()

    def _settle_cancel(self, record: CallRecord, head: dict[str, Any]) -> None:
        if head["status"] == "cancelled" and not record.cancelled:
            # Nobody asked for its end: the user's own code raised KeyboardInterrupt.
            sentence = "the task raised KeyboardInterrupt"
            head |= {"status": "failed", "failure": "user", "error_type": "KeyboardInterrupt", "message": sentence}
        if record.method is not None and record.cancelled and head["status"] == "succeeded":
            head["message"] = "it had begun when its end was asked for, and a running method cannot be interrupted"

    def _give(self, keys: Iterable[Key]) -> None:
        """In order, but for large ones. The first of each environment, and those behind it, must not block the loop."""
        for key in keys:
            record = self.records[key]
            if record.slow_to_give:
                self._hands.beside(partial(self._submit, record))
            elif self._in_a_row or _environment(record) not in self._environments:
                self._in_a_row += 1
                self._hands.in_a_row(partial(self._submit_in_a_row, record))
            else:
                self._submit(record, on_the_loop=True)

    def _submit_in_a_row(self, record: CallRecord) -> None:
        """On a thread of the hands."""
        self._submit(record)
        self._hands.back(self._row_is_shorter)

    def _row_is_shorter(self) -> None:
        self._in_a_row -= 1

    def _submit(self, record: CallRecord, *, on_the_loop: bool = False) -> None:
        """On any thread."""
        if record.cancelled:
            self._hands.back(partial(self.conclude, record, {"status": "cancelled"}))
            return
        task_id, attempt = record.key
        try:
            item = CurrentItem(task_id, attempt, record.fence, self._cluster)
            inline, beside = record.given(ray.put)
            order = TaskOrder(self.line, item, record.homes, record.digest, record.short, *inline).packed()
            record.ref = self._remote_of(record).remote(order, *beside)
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses is this call's answer
            self._hands.back(partial(self.complete, record, None, error))
            return
        record.arguments, record.function, record.objects = b"", None, []  # Ray has them
        self._environments.add(_environment(record))
        if on_the_loop and self._slots.is_one_of_many(record.key):
            self._hands.watch_with_others(record.ref, partial(self.complete, record))
        else:
            self._hands.watch(record.ref, partial(self.complete, record))
        if record.cancelled:
            self.stop(record, record.force)

    def _remote_of(self, record: CallRecord) -> Any:
        """Our wrapper with the options of this call; the options of one kind are built once."""
        kind = record.name, shape_of(record.resources), _environment(record)
        remote = self._remotes.get(kind)
        if remote is None:
            if len(self._remotes) > _KEPT_KINDS:
                self._remotes.clear()
            remote = self._remotes[kind] = self._wrapper.options(**task_options(record, self._own_modules))
        return remote

    def stop(self, record: CallRecord, force: bool) -> None:
        """From any thread: interrupt what Ray has; with ``force``, or after a while, its process is killed."""
        if record.head is not None or record.ref is None:
            return
        try:
            ray.cancel(record.ref, force=force, recursive=True)
        except Exception as error:  # noqa: BLE001 - it ends this wish, not the agent with all its other calls
            print(f"rmcs agent: {record.name} ({record.key[0]}) cannot be cancelled: {error!r}", flush=True)
        if not force:
            self._hands.back(partial(self._force_later, record))

    def _force_later(self, record: CallRecord) -> None:
        if record.head is None:
            later = asyncio.get_running_loop().call_later(_FORCE_AFTER_S, self.stop, record, True)
            record.timers.append(later)


def _read(ref: Any) -> bytes:
    return bytes(unpack(ray.get(ref))[1])


def _value_of(member: CallRecord) -> bytes:
    return _read(member.ref) if member.payload is None else member.payload


def _environment(record: CallRecord) -> str:
    return repr(record.runtime_env) if record.runtime_env else ""

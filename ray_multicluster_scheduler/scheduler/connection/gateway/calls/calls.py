"""CallRunner: submits each call of an ``Agent`` to Ray once, and keeps its result until it is acknowledged."""

from __future__ import annotations

import asyncio
import math
import pickle
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.frames import Pieces, bytes_in
from ray_multicluster_scheduler.common.gang_values import joined
from ray_multicluster_scheduler.common.model.resources import ResourceShape, shape_of
from ray_multicluster_scheduler.common.model.states import CANCEL_GRACE_S
from ray_multicluster_scheduler.common.several_returns import NO_VALUE
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import (
    MAX_VALUE_BYTES,
    CallRecord,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.failures import describe, lost_its_node
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_options import task_options
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_threads import OnResult, RayThreads
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reporting import Move
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.slot_allocator import SlotAllocator
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.value_streams import ValueStream, stream_key
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import ALWAYS_ASK, RECALL_AFTER_S
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import (
    BIG_BYTES,
    AgentEndpoint,
    Envelope,
    Key,
    TaskOrder,
    unpack,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker import kill_worker, run_call, run_stream

_WORKER_END_S = 3.0
_MAX_CACHED_KINDS = 1000
_UNKNOWN = "its agent does not have the generator"


class CallRunner:
    """Keeps the records of all calls, and runs tasks. Runs on the event loop, except where noted. ``wake`` is called
    when :meth:`collect` has new results."""

    def __init__(self, cluster: str, own_modules: list[str], threads: RayThreads, wake: Callable[[], None]) -> None:
        self.cluster, self.own_modules, self._threads, self._wake = cluster, own_modules, threads, wake
        self.agent_endpoint = AgentEndpoint("", 0, "", 0.0)
        """For workers; set once the agent listens."""
        self.records: dict[Key, CallRecord] = {}
        self.unacknowledged: dict[Key, CallRecord] = {}
        """Calls that have ended, in the order in which they did."""
        self.retained: dict[Key, tuple[Any, float]] = {}
        """References to values that stay here until they are fetched, and since when."""
        self.wrapper, self._stream_wrapper = ray.remote(run_call), ray.remote(run_stream)
        self._slots = SlotAllocator()
        self._remotes: dict[tuple[str, ResourceShape, str, bool], Any] = {}
        self._environments: set[str] = set()
        """Environments for which Ray has accepted a call, so that the next one does not block."""
        self._ordered_pending = 0
        self._ended: list[CallRecord] = []
        self._moves: list[Move] = []

    def accept(self, record: CallRecord) -> None:
        """Accept the call of a task."""
        self.records[record.key] = record
        shape = shape_of(record.resources)
        if record.ahead:
            self._submit_all(self._slots.wait(record.key, shape, overlap=record.ahead == "overlap"))
        else:
            self._submit_all(self._slots.hold(record.key, shape))

    def start(self, keys: Iterable[Key]) -> None:
        """Give slots to these calls, which were sent ahead."""
        for key in keys:
            self._submit_all(self._slots.start(key))

    def recall(self, record: CallRecord) -> None:
        """Return a call to the control plane unless it has begun. One that Ray has is cancelled there; Ray's answer
        proves that it will not run. A worker may start a young one without asking, and its report may be on the way.
        """
        if record.head is not None or record.cancelled or record.may_have_begun:
            return
        if self._slots.recall(record.key):
            self.conclude(record, {"status": "cancelled", "code": m.RECALLED})
            return
        left_s = record.sent_at + RECALL_AFTER_S - time.monotonic()
        if 0 < left_s < math.inf:
            record.timers.append(asyncio.get_running_loop().call_later(left_s, self.recall, record))
            return
        record.cancelled = record.recalled = True  # a thread that submits it now sets sent_at first, then reads this
        if record.ref is not None:
            cancel_in_ray(record, force=False, recursive=False)
        elif left_s <= 0 or record.sent_at == math.inf:  # a thread waits for Ray: it never runs, or asks us first
            self.conclude(record, {"status": "cancelled", "code": m.RECALLED})

    def may_begin(self, key: Key) -> bool:
        """The process of this call asks whether it may start; from now on the call cannot be recalled."""
        record = self.records.get(key)
        gang = record and self.records.get(record.gang_key or key)
        if record is None or gang is None or any(one.cancelled or one.head is not None for one in (record, gang)):
            return False
        record.begun = gang.begun = True
        return True

    def cancel(self, record: CallRecord, force: bool) -> None:
        """Cancel a task: interrupt it, and kill its worker if that does not help."""
        record.cancelled, record.force = True, record.force or force
        if self._slots.recall(record.key):
            self.conclude(record, {"status": "cancelled"})
        elif record.ref is not None:
            self.stop(record, force)

    async def cancelled_ended(self) -> None:
        """At the end of the agent: wait until the cancelled calls have ended or been killed; not if there are others,
        which must end at once, because the control plane may repeat them elsewhere."""
        left = [record for record in self.records.values() if record.head is None]
        if not left or not all(record.cancelled for record in left):
            return
        ends = [asyncio.get_running_loop().create_future() for _ in left]
        for record, end in zip(left, ends, strict=True):
            record.on_end = partial(_set, end)
        await asyncio.wait(ends, timeout=3 * CANCEL_GRACE_S)

    def forget(self, keys: Iterable[Key]) -> None:
        """The control plane has acknowledged these results."""
        for key in keys:
            self.records.pop(key, None)
            self.unacknowledged.pop(key, None)

    def collect(self) -> tuple[list[Move], list[CallRecord]]:
        """The slots that moved, and the calls that ended, since the last time."""
        moves, self._moves = self._moves, []
        ended, self._ended = self._ended, []
        return moves, ended

    def unacknowledged_moves(self) -> list[Move]:
        return [(key, record.moved_to) for key, record in self.unacknowledged.items() if record.moved_to is not None]

    def request_value(self, record: CallRecord) -> None:
        """A request for a value of a generator."""
        self.records[record.key] = record
        generator = self.records.get(stream_key(record))
        if record.head is not None:
            self.conclude(record, record.head)
        elif generator is None or not generator.streams:
            self.conclude(record, {"status": "failed", "failure": "crash", "code": NO_VALUE, "message": _UNKNOWN})
        else:
            record.progress, record.gang_key = generator.progress, generator.gang_key
            self._stream_of(generator).request(record)

    def read_stream(self, record: CallRecord, on_end: OnResult) -> None:
        """Begin to read the values of a generator that was submitted to Ray."""
        if record.head is None:
            self._stream_of(record).open(record.ref, self._threads.watch, on_end)

    def _stream_of(self, record: CallRecord) -> ValueStream:
        if record.stream is None:
            record.stream = ValueStream(self.complete, self.conclude)
            if record.head is not None:
                record.stream.close()
        return record.stream  # type: ignore[no-any-return]  # records know no streams

    def read_back(self, record: CallRecord) -> Future[Pieces]:
        """Read a stored result from the object store, off the event loop. It is not copied while it is there."""
        if record.gang is not None:
            members = record.gang.members
            return self._threads.run_in_pool(
                lambda: [joined([b"".join(_read(one.ref)) if one.payload is None else one.payload for one in members])]
            )
        return self.read(record.ref)

    def read(self, ref: Any) -> Future[Pieces]:
        """The same for a reference."""
        return self._threads.run_in_pool(lambda: _read(ref))

    def complete(
        self, record: CallRecord, value: Envelope | None, error: BaseException | None, *, waited: bool = False
    ) -> None:
        """Set the call's result from the envelope or error that Ray returned. After the death of a node, once its
        worker has ended, too: it checks once a second whether its raylet is alive."""
        if record.head is not None:
            return
        if value is None:
            if lost_its_node(error) and not waited:
                last = partial(self.complete, record, None, error, waited=True)
                record.timers.append(asyncio.get_running_loop().call_later(_WORKER_END_S, last))
                return
            self.conclude(record, describe(error, record.cancelled))
            return
        try:
            head, payload = unpack(value)
            self._adjust_cancelled(record, head)
        except Exception as problem:  # noqa: BLE001 - a broken envelope is a failure of this call only
            self.conclude(record, describe(problem, record.cancelled))
            return
        size = bytes_in(payload)
        if size <= BIG_BYTES:
            self.conclude(record, head, b"".join(payload))
        elif record.keep and head["status"] == "succeeded" and size <= MAX_VALUE_BYTES:
            self.retained[record.key] = (record.ref, time.monotonic())
            self.conclude(record, {**head, "kept": size})
        else:
            record.stored_bytes = size
            self.conclude(record, head, None)

    def conclude(self, record: CallRecord, head: dict[str, Any], payload: bytes | None = b"") -> None:
        """Set the call's result and move its slot to the next call. With None the payload stays in the object store."""
        for timer in record.timers:
            timer.cancel()
        if record.recalled and head["status"] == "cancelled":
            head.setdefault("code", m.RECALLED)
        record.head, record.payload = head, payload
        record.release_arguments()
        if payload is not None:
            record.ref = None
        if record.stream is not None:
            record.stream.close()
        if record.on_end is not None:
            record.on_end(record)
            return
        self.unacknowledged[record.key] = record
        self._ended.append(record)
        if record.actor is None and record.method is None:
            heir, next_keys = self._slots.ended(record.key, head.get("took"))
            if heir is not None:
                record.moved_to = heir
                self._moves.append((record.key, heir))
            self._submit_all(next_keys)
        self._wake()

    def _adjust_cancelled(self, record: CallRecord, head: dict[str, Any]) -> None:
        if head["status"] == "cancelled" and not record.cancelled:  # the user's own code raised KeyboardInterrupt
            sentence = "the task raised KeyboardInterrupt"
            head |= {"status": "failed", "failure": "user", "error_type": "KeyboardInterrupt", "message": sentence}
        if record.method is not None and record.cancelled and head["status"] == "succeeded":
            head["message"] = "it was running when it was cancelled, and a running method cannot be interrupted"

    def _submit_all(self, keys: Iterable[Key]) -> None:
        """Submit in order, except calls with large values. The first call of an environment, and the calls behind it,
        are submitted by the ordered thread, so that they do not block the loop."""
        for key in keys:
            record = self.records[key]
            if record.must_store:
                self._threads.run_in_pool(self._submit, record)
            elif self._ordered_pending or _environment(record) not in self._environments:
                self._ordered_pending += 1
                self._threads.run_in_order(self._submit_in_order, record)
            else:
                self._submit(record, on_the_loop=True)

    def _submit_in_order(self, record: CallRecord) -> None:
        """On a thread."""
        self._submit(record)
        self._threads.run_on_loop(self._ordered_done)

    def _ordered_done(self) -> None:
        self._ordered_pending -= 1

    def _submit(self, record: CallRecord, *, on_the_loop: bool = False) -> None:
        """On any thread."""
        try:
            item = CurrentItem(*record.key, record.fence, self.cluster)
            if not self.submit_to_ray(record, item, self._remote_of(record)):
                self._threads.run_on_loop(self.cancelled_unsent, record)
                return
        except Exception as error:  # noqa: BLE001 - any error of Ray is this call's failure
            self._threads.run_on_loop(self.complete, record, None, error)
            return
        self._environments.add(_environment(record))
        if record.streams:
            self._threads.run_on_loop(self.read_stream, record, partial(self.complete, record))
        elif on_the_loop and self._slots.is_one_of_many(record.key):
            self._threads.watch_in_batch(record.ref, partial(self.complete, record))
        else:
            self._threads.watch(record.ref, partial(self.complete, record))
        if record.cancelled:
            self.stop(record, record.force)

    def cancelled_unsent(self, record: CallRecord) -> None:
        """It was cancelled before it was submitted to Ray."""
        if record.head is None:
            self.conclude(record, {"status": "cancelled"})

    def submit_to_ray(self, record: CallRecord, item: CurrentItem, remote: Any) -> bool:
        """On any thread: submit a task to Ray; False if it was cancelled before. May block; raises Ray's exceptions."""
        if record.cancelled:
            return False
        inline, separate = record.split(store)
        record.sent_at = time.monotonic()
        if record.cancelled:
            return False
        since = record.sent_at if item.member is None else ALWAYS_ASK
        order = TaskOrder(self.agent_endpoint, item, since, record.homes, record.digest, record.short, *inline).packed()
        record.ref = remote.remote(order, *separate)
        record.release_arguments()
        return True

    def _remote_of(self, record: CallRecord) -> Any:
        """Our wrapper with the options of this call, cached by kind."""
        kind = record.name, shape_of(record.resources), _environment(record), record.streams
        remote = self._remotes.get(kind)
        if remote is None:
            if len(self._remotes) > _MAX_CACHED_KINDS:
                self._remotes.clear()
            remote = self._remotes[kind] = (self._stream_wrapper if record.streams else self.wrapper).options(
                **task_options(record, self.own_modules)
            )
        return remote

    def stop(self, record: CallRecord, force: bool) -> None:
        """From any thread: interrupt a submitted task; with ``force``, or after a while, kill its process."""
        if record.head is not None or record.ref is None:
            return
        cancel_in_ray(record, force=force, recursive=True)
        self._threads.run_on_loop(self._stop_later, record, self._kill if force else partial(self.stop, force=True))

    def _stop_later(self, record: CallRecord, stop: Callable[[CallRecord], object]) -> None:
        if record.head is None:
            record.timers.append(asyncio.get_running_loop().call_later(CANCEL_GRACE_S, stop, record))

    def _kill(self, record: CallRecord) -> None:
        """Kill the process by its number: Ray cannot end one whose interpreter is blocked by an extension module."""
        if record.process is not None:
            node_id, pid = record.process
            on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": on_node, "name": "rmcs: end a worker"}
            self._threads.run_in_pool(self._submit_kill, options, pid)

    def _submit_kill(self, options: dict[str, Any], pid: int) -> None:
        """On a thread."""
        try:
            ray.remote(kill_worker).options(**options).remote(pid)
        except Exception as error:  # noqa: BLE001 - an error of Ray must not end the agent with all its other calls
            print(f"rmcs agent: worker {pid} cannot be killed: {error!r}", flush=True)


def cancel_in_ray(record: CallRecord, **options: Any) -> None:
    """Call ``ray.cancel``; an error is printed, and does not end the agent with all its other calls."""
    try:
        ray.cancel(record.ref, **options)
    except Exception as error:  # noqa: BLE001 - see above
        print(f"rmcs agent: {record.name} ({record.key[0]}) cannot be cancelled: {error!r}", flush=True)


def store(data: bytes) -> Any:
    """A reference to these bytes in the object store, where workers read them without a copy. May block and raise."""
    return ray.put(pickle.PickleBuffer(data))


def _read(ref: Any) -> Pieces:
    return unpack(ray.get(ref))[1]


def _set(end: asyncio.Future[CallRecord], record: CallRecord) -> None:
    if not end.done():
        end.set_result(record)


def _environment(record: CallRecord) -> str:
    return repr(record.runtime_env) if record.runtime_env else ""

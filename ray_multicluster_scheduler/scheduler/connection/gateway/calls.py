"""The calls of this agent: given to Ray once each, answered once each, kept until acknowledged."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ray

from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.scheduler.connection.gateway.channel import Line
from ray_multicluster_scheduler.scheduler.connection.gateway.envelope import unpack
from ray_multicluster_scheduler.scheduler.connection.gateway.failures import describe
from ray_multicluster_scheduler.scheduler.connection.gateway.functions import Function, Functions
from ray_multicluster_scheduler.scheduler.connection.gateway.reports import Key, Report
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import Homes, run_call

BIG_BYTES = 1024 * 1024
_FORCE_AFTER_S = 5.0


@dataclass(slots=True)
class CallRecord:
    """One call, from acceptance until its result was acknowledged."""

    key: Key
    fence: int
    name: str
    digest: str
    function: Function
    arguments: bytes
    resources: dict[str, float]
    runtime_env: dict[str, Any]
    homes: Homes = None
    ref: Any = None
    cancelled: bool = False
    report: Report = field(default_factory=Report)
    head: dict[str, Any] | None = None
    payload: bytes | None = None
    waits_for_output: bool = False
    timers: list[threading.Timer] = field(default_factory=list)

    @property
    def big(self) -> bool:
        """Is the result too large to be kept here? Then it stays in Ray's object store until it is sent."""
        return self.head is not None and self.payload is None and self.ref is not None


class Calls:
    """Runs calls on Ray. ``wake`` is called from any thread when :meth:`finished` has something."""

    def __init__(self, cluster: str, own_modules: list[str], wake: Callable[[], None]) -> None:
        self._cluster = cluster
        self._own_modules = own_modules
        self._wake = wake
        self.line: Line | None = None
        self.records: dict[Key, CallRecord] = {}
        self.functions = Functions()
        self._remotes: dict[str, Any] = {}
        self._remote = ray.remote(run_call)
        self._done: deque[tuple[Key, bytes | None, BaseException | None]] = deque()
        self._queue: queue.SimpleQueue[CallRecord] = queue.SimpleQueue()
        self._big = ThreadPoolExecutor(2, thread_name_prefix="rmcs-big")
        threading.Thread(target=self._submit_loop, name="rmcs-submit", daemon=True).start()

    def accept(self, record: CallRecord) -> None:
        """Take a call, once: a repeated one is the same call."""
        if record.key in self.records:
            return
        self.records[record.key] = record
        if len(record.arguments) > BIG_BYTES:
            self._big.submit(self._submit, record)
        else:
            self._queue.put(record)

    def cancel(self, key: Key, force: bool) -> None:
        """End a call: an interrupt first, and the worker's death if that does not help."""
        record = self.records.get(key)
        if record is None or record.head is not None:
            return
        record.cancelled = True
        if record.ref is not None:
            self._cancel(record, force)

    def forget(self, keys: Iterable[Key]) -> None:
        """The control plane has these results."""
        for key in keys:
            self.records.pop(key, None)

    def finished(self) -> list[CallRecord]:
        """The calls that ended since last asked."""
        ended = []
        while self._done:
            key, value, error = self._done.popleft()
            record = self.records.get(key)
            if record is None or record.head is not None:
                continue
            try:
                self._conclude(record, value, error)
            except Exception as problem:  # noqa: BLE001 - an answer that makes no sense is an answer, too
                record.head, record.ref = describe(problem, record.cancelled), None
            ended.append(record)
        return ended

    def read_back(self, record: CallRecord) -> Future[bytes]:
        """Fetch a big result from the object store, off the event loop."""
        return self._big.submit(lambda: bytes(unpack(ray.get(record.ref))[1]))

    def _submit_loop(self) -> None:
        while True:
            self._submit(self._queue.get())

    def _submit(self, record: CallRecord) -> None:
        task_id, attempt = record.key
        try:
            item = CurrentItem(task_id, attempt, record.fence, self._cluster)
            function = record.function.argument(ray.put)
            record.ref = self._shaped(record).remote(
                self.line, item, record.homes, record.digest, function, record.arguments
            )
        except Exception as error:  # noqa: BLE001 - whatever Ray refuses is this call's answer
            self._finish(record.key, None, error)
            return
        record.arguments = b""
        record.ref.future().add_done_callback(lambda future: self._completed(record.key, future))
        if record.cancelled:
            self._cancel(record, force=False)

    def _shaped(self, record: CallRecord) -> Any:
        """Our wrapper with the options of this call; the options of one shape are built once."""
        shape = repr((record.name, sorted(record.resources.items()), record.runtime_env))
        remote = self._remotes.get(shape)
        if remote is None:
            if len(self._remotes) > 1000:
                self._remotes.clear()
            remote = self._remotes[shape] = self._remote.options(**self._options(record))
        return remote

    def _options(self, record: CallRecord) -> dict[str, Any]:
        custom = {name: amount for name, amount in record.resources.items() if name not in ("CPU", "GPU", "memory")}
        options: dict[str, Any] = {
            "name": record.name,
            "max_retries": 0,
            "num_cpus": record.resources.get("CPU", 0),
            "num_gpus": record.resources.get("GPU", 0),
        }
        if record.resources.get("memory"):
            options["memory"] = record.resources["memory"]
        if custom:
            options["resources"] = custom
        if record.runtime_env:
            modules = [*self._own_modules, *record.runtime_env.get("py_modules", [])]
            options["runtime_env"] = {**record.runtime_env, "py_modules": modules}
        return options

    def _completed(self, key: Key, future: Future[bytes]) -> None:
        error = future.exception()
        self._finish(key, None if error else future.result(), error)

    def _finish(self, key: Key, value: bytes | None, error: BaseException | None) -> None:
        self._done.append((key, value, error))
        self._wake()

    def _conclude(self, record: CallRecord, value: bytes | None, error: BaseException | None) -> None:
        for timer in record.timers:
            timer.cancel()
        if value is None:
            record.head = describe(error, record.cancelled)
            record.ref = None
            return
        head, payload = unpack(value)
        if head["status"] == "cancelled" and not record.cancelled:
            # Nobody asked for its end: the user's own code raised KeyboardInterrupt.
            sentence = "the task raised KeyboardInterrupt"
            head |= {"status": "failed", "failure": "user", "error_type": "KeyboardInterrupt", "message": sentence}
        record.head = head
        if len(payload) <= BIG_BYTES:
            record.payload = bytes(payload)
            record.ref = None

    def _cancel(self, record: CallRecord, force: bool) -> None:
        if record.head is not None or record.ref is None:
            return
        try:
            ray.cancel(record.ref, force=force, recursive=True)
        except Exception as error:  # noqa: BLE001 - it ends this wish, not the agent with all its other calls
            print(f"rmcs agent: {record.name} ({record.key[0]}) cannot be cancelled: {error!r}", flush=True)
        if not force:
            timer = threading.Timer(_FORCE_AFTER_S, self._cancel, (record, True))
            timer.daemon = True
            record.timers.append(timer)
            timer.start()

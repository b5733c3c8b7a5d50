"""ResultCollector: receives results, output and state changes from the links, and posts events to the machine.

:class:`DurableResultCollector` also stores them before it posts the event, and before the agent may forget them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.common.logging import about_item, get_logger
from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult, LinkInfo
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DispatchAccepted,
    Event,
    HeadSilent,
    LinkClosed,
    LinkDown,
    LinkUp,
    PlaceMoved,
    ProcessesDead,
    SnapshotTaken,
    Started,
)
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore, StoredOutput
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import encode_outcome
from ray_multicluster_scheduler.scheduler.scheduler_core.secret_masker import SecretMasker

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.store import Store
    from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import DurableLog

_log = get_logger(__name__)
_RETRY_S = 1.0
_SMALL_BYTES = 32 * 1024
"""Values up to this size are written with their outcome; larger ones before it, in a thread."""
_OUTPUT_INTERVAL_S = 5.0
"""Output is written when its attempt ends, and at this interval before."""


class ResultCollector:
    """The LinkListener of every link. Keeps the newest result of each item until it is forgotten."""

    def __init__(self, post: Callable[[Event], None], output: OutputStore) -> None:
        self._post = post
        self._output = output
        self._results: dict[str, CallResult] = {}
        self._on_method_result: Callable[[CallResult], None] | None = None
        self.secret_masker = SecretMasker(lambda _: None)
        """Replaced by the runtime, which knows the items."""

    def route_methods(self, callback: Callable[[CallResult], None]) -> None:
        """Pass results of actor method calls to this callback: they are not items of the machine."""
        self._on_method_result = callback

    def result(self, task_id: str) -> CallResult | None:
        """The result of the last attempt."""
        return self._results.get(task_id)

    def forget(self, task_id: str) -> None:
        """Drop the result of an item."""
        self._results.pop(task_id, None)

    def link_up(self, info: LinkInfo) -> None:
        self._post(LinkUp(info.cluster, info.python_version, info.ray_version, info.session_id))

    def link_down(self, cluster: str, sentence: str, silent_s: float = 0.0) -> None:
        self._post(LinkDown(cluster, sentence, silent_s))

    def link_closed(self, cluster: str, sentence: str) -> None:
        self._post(LinkClosed(cluster, sentence))

    def processes_dead(self, cluster: str, sentence: str) -> None:
        self._post(ProcessesDead(cluster, sentence))

    def head_silent(self, cluster: str, silent_s: float) -> None:
        self._post(HeadSilent(cluster, silent_s))

    def accepted(self, cluster: str, task_id: str, attempt: int) -> None:
        self._post(DispatchAccepted(task_id, attempt))

    def started(self, cluster: str, task_id: str, attempt: int, at: float, node_id: str) -> None:
        self._post(Started(task_id, attempt, at, node_id))

    def moved(self, cluster: str, ended: tuple[str, int], begun: tuple[str, int]) -> None:
        self._post(PlaceMoved(ended, begun))

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        self._output.write(task_id, attempt, stream, self.secret_masker.text(task_id, text))

    def dropped(self, cluster: str, task_id: str, attempt: int, characters: int) -> None:
        self._output.count_dropped(task_id, attempt, characters)

    def finished(self, cluster: str, result: CallResult) -> None:
        if result.actor_id is not None:
            if self._on_method_result is not None:
                self._on_method_result(result)
            return
        self._finished(cluster, self.secret_masker.result(result))

    def _finished(self, cluster: str, result: CallResult) -> None:
        """Keep a masked result of an item and report it."""
        kept = self._results.get(result.task_id)
        if kept is None or kept.attempt <= result.attempt:  # else it is late, of an abandoned attempt
            self._results[result.task_id] = result
        self._report(result)

    def _report(self, result: CallResult) -> None:
        self._output.close(result.task_id, result.attempt)
        self._post(
            AttemptFinished(
                result.task_id,
                result.attempt,
                result.status,
                result.failure,
                result.error_type,
                result.code,
                result.message,
                result.took,
                result.started_at,
                result.node_id,
            )
        )

    def when_durable(self, callback: Callable[[], object]) -> None:
        callback()  # there is no store

    def hold_until_delivered(self, call_id: str, callback: Callable[[], object]) -> bool:
        return False

    def snapshot(self, snapshot: ResourceSnapshot) -> None:
        self._post(SnapshotTaken(snapshot))


class DurableResultCollector(ResultCollector):
    """Stores results and output. Events are posted in the order of arrival: results that come after a large value wait
    until that is written."""

    def __init__(
        self,
        post: Callable[[Event], None],
        output: StoredOutput,
        store: Store,
        log: DurableLog,
        when_durable: Callable[[Callable[[], object]], object],
    ) -> None:
        super().__init__(post, output)
        self._store, self._log, self._when_durable = store, log, when_durable
        self._stored_output = output
        self._output_timer: asyncio.TimerHandle | None = None
        self._queue: deque[tuple[asyncio.Task[str | None] | None, Callable[[], object]]] = deque()
        self._closing = False
        self._undelivered: dict[str, Callable[[], object]] = {}

    def stop_acknowledging(self) -> None:
        """Stop acknowledging results, so that the agents send them again to the next process. This process ends and may
        not deliver them; results of method calls exist only at their agents."""
        self._closing = True

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        super().output(cluster, task_id, attempt, stream, text)
        if self._output_timer is None:
            self._output_timer = asyncio.get_running_loop().call_later(_OUTPUT_INTERVAL_S, self._write_output_now)

    def write_output(self) -> None:
        """Add all unsaved output to the next write."""
        for key in list(self._stored_output.unsaved):
            self._write_output_of(*key)

    def _write_output_now(self) -> None:
        self._output_timer = None
        self.write_output()
        self._when_durable(lambda: None)

    def _write_output_of(self, task_id: str, attempt: int) -> None:
        document = self._stored_output.take_unsaved(task_id, attempt)
        if document is not None:
            self._log.add_output(task_id, attempt, document)

    def _finished(self, cluster: str, result: CallResult) -> None:
        payload = result.payload
        if payload is not None and len(payload) > _SMALL_BYTES:
            task = asyncio.get_running_loop().create_task(self._write(cluster, result, payload))
            task.add_done_callback(lambda _: self._run_queue())
            self._queue.append((task, lambda: self._finish(cluster, replace(result, digest=_digest_from(task)))))
        else:
            self._in_order(lambda: self._finish(cluster, result))

    def when_durable(self, callback: Callable[[], object]) -> None:
        self._in_order(lambda: self._when_durable(lambda: self._acknowledge(callback)))

    def hold_until_delivered(self, call_id: str, callback: Callable[[], object]) -> bool:
        self._undelivered[call_id] = callback
        return True

    def delivered(self, call_id: str) -> None:
        """Acknowledge a method result that its caller has received or abandoned."""
        callback = self._undelivered.pop(call_id, None)
        if callback is not None and not self._closing:
            callback()

    def _finish(self, cluster: str, result: CallResult) -> None:
        if (result.task_id, result.attempt) in self._stored_output.unsaved:
            self._write_output_of(result.task_id, result.attempt)
        if self._log.is_over(result.task_id):  # late: the outcome of the item is stored already
            self._report(result)
            return
        outcome, payload = encode_outcome(result), result.payload
        small = {outcome.digest: payload} if outcome.digest and payload and len(payload) <= _SMALL_BYTES else {}
        self._log.add_outcome(outcome, small)
        super()._finished(cluster, result)

    def _acknowledge(self, callback: Callable[[], object]) -> None:
        crash_point("before acknowledge")
        if not self._closing:
            callback()

    def _in_order(self, callback: Callable[[], object]) -> None:
        if self._queue:
            self._queue.append((None, callback))
        else:
            callback()

    def _run_queue(self) -> None:
        while self._queue:
            task, callback = self._queue[0]
            if task is not None and not task.done():
                return
            self._queue.popleft()
            callback()

    async def _write(self, cluster: str, result: CallResult, payload: bytes) -> str | None:
        """Write a large value, with retries: its agent keeps it until it is acknowledged. Returns its digest."""
        logged = False
        while True:
            try:
                return await asyncio.to_thread(self._store.put_blob, payload, beyond_quota=True)
            except StoreFullError as error:
                if not logged:
                    extra = about_item(result.task_id, result.attempt, cluster, error.code)
                    _log.warning("the value of %s cannot be written yet: %s", result.task_id, error, extra=extra)
                logged = True
                await asyncio.sleep(_RETRY_S)
            except StoreError as error:  # the store has failed, which also ends the control plane
                extra = about_item(result.task_id, result.attempt, cluster, error.code)
                _log.error("the value of %s cannot be written: %s", result.task_id, error, extra=extra)
                return None


def _digest_from(task: asyncio.Task[str | None]) -> str | None:
    """The digest that :meth:`_write` returned; None if it failed."""
    return None if task.cancelled() or task.exception() is not None else task.result()

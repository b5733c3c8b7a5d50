"""KeepingCollector: what came back is in the store before anybody is told of it, and before its agent forgets it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.common.logging import about_item, get_logger
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import ResultCollector
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.durable_log import DurableLog
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_outcome import outcome_of
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_output import StoredOutput

_log = get_logger(__name__)
_AGAIN_S = 1.0
_SMALL_BYTES = 32 * 1024
"""So much is written together with the news; more is written before it, beside the loop."""
_OUTPUT_S = 5.0
"""What an attempt prints is written when it ends, and before that so long after it came."""


class DurableResultCollector(ResultCollector):
    """Ends are told in the order in which they came: what ends after a large value waits until that is written."""

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
        self._printed = output
        self._soon: asyncio.TimerHandle | None = None
        self._line: deque[tuple[asyncio.Task[None] | None, Callable[[], object]]] = deque()
        self._leaving = False
        self._unheard: dict[str, Callable[[], object]] = {}

    def acknowledge_no_more(self) -> None:
        """This process ends, and may not tell any program of what comes from now on: nothing of it is acknowledged, so
        that the next process hears of it again. Answers to calls of methods are nowhere but with their agents."""
        self._leaving = True

    def output(self, cluster: str, task_id: str, attempt: int, stream: str, text: str) -> None:
        super().output(cluster, task_id, attempt, stream, text)
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_OUTPUT_S, self._write_output_now)

    def write_output(self) -> None:
        """With whatever is written next: all that was printed and is not written."""
        for key in list(self._printed.behind):
            self._write_output_of(*key)

    def _write_output_now(self) -> None:
        self._soon = None
        self.write_output()
        self._when_durable(lambda: None)

    def _write_output_of(self, task_id: str, attempt: int) -> None:
        document = self._printed.unwritten(task_id, attempt)
        if document is not None:
            self._log.printed(task_id, attempt, document)

    def _finished(self, cluster: str, result: CallResult) -> None:
        payload = result.payload
        if payload is not None and len(payload) > _SMALL_BYTES:
            task = asyncio.get_running_loop().create_task(self._write(cluster, result, payload))
            task.add_done_callback(lambda _: self._go_on())
            self._line.append((task, lambda: self._finish(cluster, result)))
        else:
            self._in_turn(lambda: self._finish(cluster, result))

    def when_durable(self, deed: Callable[[], object]) -> None:
        self._in_turn(lambda: self._say_when_kept(deed))

    def hold_until_delivered(self, call_id: str, deed: Callable[[], object]) -> bool:
        self._unheard[call_id] = deed
        return True

    def heard(self, call_id: str) -> None:
        """The program that made this call has its answer, or does not want it any more."""
        deed = self._unheard.pop(call_id, None)
        if deed is not None and not self._leaving:
            deed()

    def _finish(self, cluster: str, result: CallResult) -> None:
        if (result.task_id, result.attempt) in self._printed.behind:
            self._write_output_of(result.task_id, result.attempt)
        if self._log.is_over(result.task_id):  # it is late: how the item ended is written
            self._report(result)
            return
        outcome, payload = outcome_of(result), result.payload
        small = {outcome.digest: payload} if outcome.digest and payload and len(payload) <= _SMALL_BYTES else {}
        self._log.ended(outcome, small)
        super()._finished(cluster, result)

    def _say_when_kept(self, deed: Callable[[], object]) -> None:
        self._when_durable(lambda: self._acknowledge(deed))

    def _acknowledge(self, deed: Callable[[], object]) -> None:
        crash_point("before acknowledge")
        if not self._leaving:
            deed()

    def _in_turn(self, deed: Callable[[], object]) -> None:
        if self._line:
            self._line.append((None, deed))
        else:
            deed()

    def _go_on(self) -> None:
        while self._line:
            task, deed = self._line[0]
            if task is not None and not task.done():
                return
            self._line.popleft()
            deed()

    async def _write(self, cluster: str, result: CallResult, payload: bytes) -> None:
        """However long it takes: its agent keeps it until then."""
        said = False
        while True:
            try:
                await asyncio.to_thread(self._store.put_blob, payload, beyond_quota=True)
                return
            except StoreFullError as error:
                if not said:
                    extra = about_item(result.task_id, result.attempt, cluster, error.code)
                    _log.warning("the value of %s cannot be written yet: %s", result.task_id, error, extra=extra)
                said = True
                await asyncio.sleep(_AGAIN_S)
            except StoreError as error:  # nothing is written any more: whoever drives the machine hears of it, too
                extra = about_item(result.task_id, result.attempt, cluster, error.code)
                _log.error("the value of %s cannot be written: %s", result.task_id, error, extra=extra)
                return

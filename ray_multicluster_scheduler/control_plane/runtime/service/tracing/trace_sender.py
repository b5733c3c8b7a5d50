"""TraceSender: a background thread that sends a trace of every finished item to an OpenTelemetry collector."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import ConfigurationError, StoreError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config.settings import Tracing
from ray_multicluster_scheduler.control_plane.runtime.service.tracing.item_spans import spans_of
from ray_multicluster_scheduler.control_plane.store import LogEntry, Store
from ray_multicluster_scheduler.control_plane.store.records import Step
from ray_multicluster_scheduler.scheduler.scheduler_core.durable_log import Publish
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_row

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.service.tracing.otlp_exporter import OtlpExporter

_log = get_logger(__name__)
MAX_WAITING = 10_000
"""Length of the queue of finished items; items that end while it is full are counted as dropped."""
BATCH = 50
_GATHER_S = 0.5
_REST = 3.0
"""Seconds of sleep for each second of CPU time: the thread shares one interpreter with the scheduler."""
_RETRY_S = 5.0
_GIVE_UP_S = 300.0
"""A batch is retried for this long, then dropped: one that the collector never accepts must not block the others."""
_CLOSE_TIMEOUT_S = 2.0


def trace_sender_for(tracing: Tracing | None, store: Store) -> TraceSender | None:
    """None without the setting. Raises ConfigurationError if the OpenTelemetry packages are not installed."""
    if tracing is None:
        return None
    try:
        from ray_multicluster_scheduler.control_plane.runtime.service.tracing.otlp_exporter import (  # noqa: PLC0415 - an extra
            OtlpExporter,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"settings.tracing needs packages that are not installed ({error}).",
            next_step="pip install 'ray_multicluster_scheduler[otel]', or leave tracing out",
        ) from error
    return TraceSender(tracing.endpoint, store, OtlpExporter(tracing.endpoint, store.control_plane))


class TraceSender:
    """Queues only item ids; an item's history is read from the store when its batch is sent."""

    def __init__(self, endpoint: str, store: Store, exporter: OtlpExporter, most: int = MAX_WAITING) -> None:
        self._endpoint, self._store, self._exporter, self._most = endpoint, store, exporter, most
        self._waiting: deque[str] = deque()
        self._wake, self._closed = threading.Event(), threading.Event()
        self._deadline = float("inf")
        self._thread: threading.Thread | None = None
        self._away = False
        self.sent = self.dropped = 0
        """Items since the start of the process."""

    def listening_after(self, listener: Publish) -> Publish:
        """A listener of durable records that calls ``listener`` first and then enqueues finished items here."""

        def both(last: int, records: list[LogEntry]) -> None:
            try:
                listener(last, records)
            finally:
                self.enqueue_finished(records)

        return both

    def enqueue_finished(self, records: Sequence[LogEntry]) -> None:
        """Called on the loop with records that have just become durable."""
        for one in records:
            if type(one) is Step and one.state.terminal:
                if len(self._waiting) >= self._most:
                    self.dropped += 1
                else:
                    self._waiting.append(one.item_id)
        if self._waiting and not self._wake.is_set():
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmcs-traces", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Send what is queued, for a short time at most. Idempotent."""
        if self._closed.is_set():
            return
        self._deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        self._closed.set()
        self._wake.set()
        away = self._away
        if away:  # the collector does not answer: do not wait for it
            self._exporter.close()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        if not away:
            self._exporter.close()
        self.dropped += len(self._waiting)
        if self._waiting:
            _log.warning("%d traces were not sent to %s before shutdown", len(self._waiting), self._endpoint)

    # ---- on its thread

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait()
            self._closed.wait(_GATHER_S)  # items that end together are sent together
            self._wake.clear()  # before reading the queue, so that a later item sets it again
            while self._waiting and time.monotonic() < self._deadline:
                cpu_before = time.thread_time()
                group = [self._waiting[at] for at in range(min(len(self._waiting), BATCH))]
                try:
                    self._send(group)
                except StoreError as error:
                    self._drop(group, f"their items cannot be read: {error}")
                except Exception:  # noqa: BLE001 - a defect here must not end the thread
                    _log.exception("traces cannot be made: a defect")
                    self._drop(group, "a defect")
                self._closed.wait((time.thread_time() - cpu_before) * _REST)

    def _send(self, group: list[str]) -> None:
        self._exporter.forget()
        for item_id in group:
            stored = self._store.item(item_id)
            if stored is not None:
                self._exporter.add(item_id, spans_of(decode_row(stored, self._store.steps(item_id), None)))
        started_at = time.monotonic()
        while (problem := self._exporter.send()) is not None:
            if not self._away:
                self._away = True
                _log.warning(
                    "traces cannot be sent to %s (%s); retrying, with at most %d queued items; scheduling continues",
                    self._endpoint,
                    problem,
                    self._most,
                )
            if self._closed.is_set():
                self._deadline = 0.0  # shutting down: do not retry
                return
            if time.monotonic() - started_at > _GIVE_UP_S:
                self._drop(group, problem)
                return
            self._closed.wait(_RETRY_S)
        self.sent += len(group)
        for _ in group:
            self._waiting.popleft()
        if self._away:
            self._away = False
            _log.warning("traces are sent to %s again; %d were dropped", self._endpoint, self.dropped)

    def _drop(self, group: list[str], why: str) -> None:
        if not self._closed.is_set():  # close() logs the total itself
            _log.warning("%d traces were dropped: %s", len(group), why)
        for _ in group:
            self._waiting.popleft()
            self.dropped += 1

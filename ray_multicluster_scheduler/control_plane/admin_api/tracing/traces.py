"""Traces: a thread that tells a collector of the items that are over. Nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import ConfigurationError, StoreError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.admin_api.tracing.item_spans import spans_of
from ray_multicluster_scheduler.control_plane.config.settings import Tracing
from ray_multicluster_scheduler.control_plane.store import LogEntry, Store
from ray_multicluster_scheduler.control_plane.store.records import Step
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.durable_log import Tell
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_rows import item_row

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.admin_api.tracing.otlp import Collector

_log = get_logger(__name__)
MOST_WAITING = 10_000
"""So many items may wait to be told of; those that end while there are more are counted, and not told of."""
AT_ONCE = 50
_GATHER_S = 0.5
_REST = 3.0
"""For each second that it computes, it rests so many: it shares one interpreter with the scheduler."""
_AGAIN_S = 5.0
_GIVE_UP_S = 300.0
"""So long one group is tried, for a collector that is away; one that it will never take must not stop all others."""
_PATIENCE_S = 2.0


def traces_for(tracing: Tracing | None, store: Store) -> Traces | None:
    """None if they are not wanted. Raises ConfigurationError if what they need is not installed."""
    if tracing is None:
        return None
    try:
        from ray_multicluster_scheduler.control_plane.admin_api.tracing.otlp import Collector  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            f"settings.tracing needs packages that are not installed ({error}).",
            next_step="pip install 'ray_multicluster_scheduler[otel]', or leave tracing out",
        ) from error
    return Traces(tracing.endpoint, store, Collector(tracing.endpoint, store.control_plane))


class Traces:
    """What is told of an item is read from the store when its turn comes: only ids wait."""

    def __init__(self, endpoint: str, store: Store, collector: Collector, most: int = MOST_WAITING) -> None:
        self._endpoint, self._store, self._collector, self._most = endpoint, store, collector, most
        self._waiting: deque[str] = deque()
        self._some, self._over = threading.Event(), threading.Event()
        self._ended_at = float("inf")
        self._thread: threading.Thread | None = None
        self._away = False
        self.sent = self.dropped = 0
        """Items, since the process began."""

    def beside(self, tell: Tell) -> Tell:
        """What tells somebody else, and then us."""

        def both(last: int, told: list[LogEntry]) -> None:
            try:
                tell(last, told)
            finally:
                self.heard(told)

        return both

    def heard(self, told: Sequence[LogEntry]) -> None:
        """On the loop: this is durable now. It only remembers what is over."""
        for one in told:
            if type(one) is Step and one.state.terminal:
                if len(self._waiting) >= self._most:
                    self.dropped += 1
                else:
                    self._waiting.append(one.item_id)
        if self._waiting and not self._some.is_set():
            self._some.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmcs-traces", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """What waits is sent if that is possible within a moment. Idempotent."""
        if self._over.is_set():
            return
        self._ended_at = time.monotonic() + _PATIENCE_S
        self._over.set()
        self._some.set()
        away = self._away
        if away:  # there is nothing to wait for
            self._collector.close()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        if not away:
            self._collector.close()
        self.dropped += len(self._waiting)
        if self._waiting:
            _log.warning("%d traces were not sent to %s before the end", len(self._waiting), self._endpoint)

    # ---- on its thread

    def _run(self) -> None:
        while not self._over.is_set():
            self._some.wait()
            self._over.wait(_GATHER_S)  # what ends together is sent together
            self._some.clear()  # before they are looked at: whoever comes later wakes us again
            while self._waiting and time.monotonic() < self._ended_at:
                began = time.thread_time()
                group = [self._waiting[at] for at in range(min(len(self._waiting), AT_ONCE))]
                try:
                    self._tell(group)
                except StoreError as error:
                    self._drop(group, f"what they tell of cannot be read: {error}")
                except Exception:  # noqa: BLE001 - nothing stops because somebody who only looks on cannot be told
                    _log.exception("traces cannot be made: a defect")
                    self._drop(group, "a defect")
                self._over.wait((time.thread_time() - began) * _REST)

    def _tell(self, group: list[str]) -> None:
        self._collector.forget()
        for item_id in group:
            stored = self._store.item(item_id)
            if stored is not None:
                self._collector.add(item_id, spans_of(item_row(stored, self._store.steps(item_id), None)))
        begun = time.monotonic()
        while (problem := self._collector.send()) is not None:
            self._say_away(problem)
            if self._over.is_set():
                self._ended_at = 0.0  # it is not there, and nobody waits for it any longer
                return
            if time.monotonic() - begun > _GIVE_UP_S:
                self._drop(group, problem)
                return
            self._over.wait(_AGAIN_S)
        self.sent += len(group)
        for _ in group:
            self._waiting.popleft()
        if self._away:
            self._away = False
            _log.warning("traces are sent to %s again; %d could not be sent", self._endpoint, self.dropped)

    def _say_away(self, problem: str) -> None:
        if not self._away:
            self._away = True
            _log.warning(
                "traces cannot be sent to %s (%s); at most %d wait, and it is tried again; nothing else waits for it",
                self._endpoint,
                problem,
                self._most,
            )

    def _drop(self, group: list[str], why: str) -> None:
        if not self._over.is_set():  # else whoever ends it says how many
            _log.warning("%d traces are given up: %s", len(group), why)
        for _ in group:
            self._waiting.popleft()
            self.dropped += 1

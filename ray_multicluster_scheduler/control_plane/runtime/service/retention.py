"""Retention: a thread of the service that deletes old items from the store, their payloads first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.store import Store

_log = get_logger(__name__)
INTERVAL_S = 300.0
_STOP_TIMEOUT_S = 2.0


class Retention:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        every_s: float = INTERVAL_S,
        needed: Callable[[], Collection[str]] = tuple,
        release_values: Callable[[float], object] = lambda _: None,
    ) -> None:
        """``needed`` returns the items whose values unfinished items need. ``release_values`` is called with the
        maximum age of values that are kept in clusters."""
        self._store, self._settings, self._clock, self._every_s = store, settings, clock, every_s
        self._needed, self._release_values = needed, release_values
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmcs-retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait a short time for a run in progress; on a full disk it may last until the store is closed."""
        self._over.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def tidy(self) -> int:
        """Run once; returns how many items were deleted. Raises StoreError."""
        now, settings = self._clock.now(), self._settings
        self._release_values(settings.keep_payloads_s)
        self._store.expire_payloads(now - settings.keep_payloads_s, self._needed())
        forgotten = self._store.expire(now - settings.keep_history_s, settings.keep_history_items, self._needed())
        self._store.delete_unused_blobs()
        return forgotten

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self.tidy()
            except StoreError as error:  # retried; submitters get the store's error
                _log.warning("old items cannot be deleted now: %s", error)
            except Exception:  # noqa: BLE001 - a defect must not end retention
                _log.exception("old items cannot be deleted: a defect")

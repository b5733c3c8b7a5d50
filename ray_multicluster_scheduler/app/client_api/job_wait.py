"""AwaitedJobs: what `wait_for_all_jobs` does between two looks, whoever waits and however."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskTimeoutError
from ray_multicluster_scheduler.common.notices import notify
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED


class AwaitedJobs:
    """Its time begins when it is made. Raises ConfigurationError for what is no list of ids."""

    def __init__(
        self, ids: Sequence[str], check_interval: float, timeout: float | None, *, stop_on_failure: bool
    ) -> None:
        if isinstance(ids, str):
            raise ConfigurationError(f"ids is the text {ids!r}.", next_step="pass a list of job ids")
        self.ids = list(ids)
        self._interval, self._timeout, self._stops = check_interval, timeout, stop_on_failure
        now = time.monotonic()
        self._deadline = None if timeout is None else now + timeout
        self._next_word = now + check_interval

    def left(self, statuses: Mapping[str, str]) -> list[str]:
        """Those that are not over."""
        return [job_id for job_id, status in statuses.items() if status not in ENDED]

    def to_stop(self, statuses: Mapping[str, str]) -> list[str]:
        """Those that are to be stopped now because one has failed; only once."""
        if not self._stops or "FAILED" not in statuses.values():
            return []
        self._stops = False
        return self.left(statuses)

    def pause_s(self, statuses: Mapping[str, str]) -> float:
        """How long to wait for one of them before the next look. Says now and then what is waited for. Raises
        TaskTimeoutError."""
        now = time.monotonic()
        waiting = [f"{job_id} ({statuses[job_id]})" for job_id in self.left(statuses)]
        if self._deadline is not None and now >= self._deadline:
            raise TaskTimeoutError(
                f"{len(waiting)} of {len(self.ids)} jobs are not over after {self._timeout:g} s: {', '.join(waiting)}",
                next_step="wait longer, or stop them with stop_job",
            )
        if now >= self._next_word:
            notify(f"waiting for {', '.join(waiting)}")
            self._next_word = now + self._interval
        until = self._next_word if self._deadline is None else min(self._next_word, self._deadline)
        return max(0.0, until - now)

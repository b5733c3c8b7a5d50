"""ClusterSubmissionHistory: when each cluster last got top-level work, for the submission interval."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings


class ClusterSubmissionHistory:
    """One submission per cluster in ``submission_interval_s``, for the kinds that the settings name.

    The kinds share one interval per cluster. It begins when an item is sent, and again when the cluster has accepted
    it, which may take seconds. Retries and resumed work neither wait for it nor restart it.
    """

    def __init__(self, settings: Settings) -> None:
        self._interval_s = settings.submission_interval_s
        self._kinds = settings.submission_interval_kinds
        self._last: dict[str, float] = {}
        self.changed = False
        """Set when a submission is recorded; the reader resets it."""

    def _applies_to(self, kind: str) -> bool:
        return self._interval_s > 0 and kind in self._kinds

    def record(self, task: TaskDescription, cluster: str, now: float, *, retry: bool) -> None:
        """An item was sent to the cluster or accepted by it now."""
        if not retry and not task.connects_only:
            self.record_at(task.base_kind, cluster, now)

    def record_at(self, kind: str, cluster: str, at: float) -> None:
        """An item of this kind was sent there at this time, maybe by an earlier process."""
        if self._applies_to(kind):
            self._last[cluster] = at
            self.changed = True

    def next_at(self, cluster: str) -> float | None:
        """When the next submission is allowed there; None if it is allowed at any time."""
        last = self._last.get(cluster)
        return None if last is None else last + self._interval_s

    def forget(self, cluster: str) -> None:
        self._last.pop(cluster, None)

"""SubmissionIntervalFilter: enough time has passed since the last top-level submission to the cluster."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import SUBMISSION_INTERVAL


class SubmissionIntervalFilter:
    """For the kinds in ``submission_interval_kinds``; the engine leaves it out for retries."""

    name = "submission_interval"
    by_kind = True
    lasting = True

    def __init__(self, settings: Settings) -> None:
        self._kinds = settings.submission_interval_kinds
        self._interval_s = settings.submission_interval_s

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        next_at = cluster.next_submission_at
        if task.base_kind not in self._kinds or next_at is None or cluster.at >= next_at:
            return None
        wait = next_at - cluster.at
        sentence = f"it takes one {task.kind} per {self._interval_s:g} s; the next in {wait:.0f} s"
        return Rejection(SUBMISSION_INTERVAL, sentence)

"""Users' filters and ranks under the names they were registered by, their answers checked.

A wrong answer raises here, where it is blamed on the policy and ends one item. Scores are checked by the engine.
"""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter, Rank, is_by_kind


class CheckedFilter:
    """Answers None or a Rejection, or raises TypeError."""

    def __init__(self, name: str, policy: Filter) -> None:
        self.name, self.by_kind = name, is_by_kind(policy)
        self._policy = policy

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        answer: object = self._policy.check(task, cluster)
        if answer is None or isinstance(answer, Rejection):
            return answer
        raise TypeError(f"check returned {answer!r}, neither None (yes) nor a Rejection (no)")


class CheckedRank:
    """Answers a whole number, or raises TypeError."""

    def __init__(self, name: str, policy: Rank) -> None:
        self.name = name
        self._policy = policy

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        answer: object = self._policy.rank(task, cluster)
        if isinstance(answer, int):
            return int(answer)
        raise TypeError(f"the rank {self.name!r} returned {answer!r}, not a whole number")

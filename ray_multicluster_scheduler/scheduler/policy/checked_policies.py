"""Users' policies under the names they were registered by, their answers checked.

A wrong answer raises here, where it is blamed on the policy and ends one item. Nothing else of a policy is looked at:
what built-in ones have beside their one method is not asked of others.
"""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter, Rank, RawScore, Score, is_by_kind


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


class CheckedScore:
    """Answers a number, or raises TypeError; that it lies within 0..1 is seen to by the engine."""

    def __init__(self, name: str, policy: Score) -> None:
        self.name = name
        self._policy = policy

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        return _number(self._policy.score(task, cluster))


class CheckedRawScore(CheckedScore):
    """One that people know by another number."""

    def __init__(self, name: str, policy: RawScore) -> None:
        super().__init__(name, policy)
        self._raw = policy

    def raw(self, task: TaskDescription, cluster: ClusterView) -> float:
        return _number(self._raw.raw(task, cluster))


def _number(answer: object) -> float:
    """What users return may be a Decimal, or a number of some library."""
    if isinstance(answer, (str, bytes)):
        raise TypeError(f"{answer!r} is not a number within 0..1")
    try:
        return float(answer)  # type: ignore[arg-type]  # whether it can be told is what is asked
    except (TypeError, ValueError):
        raise TypeError(f"{answer!r} is not a number within 0..1") from None

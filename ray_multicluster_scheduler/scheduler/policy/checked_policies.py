"""Wrappers of users' policies that check their answers and carry the names they were registered by.

A wrong answer raises here, names the policy in the error and ends one item. The optional attributes that built-in
policies have are not expected of users' policies.
"""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter, Rank, RawScore, Score, is_by_kind


class CheckedFilter:
    """Returns None or a Rejection, or raises TypeError."""

    def __init__(self, name: str, policy: Filter) -> None:
        self.name, self.by_kind = name, is_by_kind(policy)
        self._policy = policy

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        answer: object = self._policy.check(task, cluster)
        if answer is None or isinstance(answer, Rejection):
            return answer
        raise TypeError(f"check returned {answer!r}, neither None (yes) nor a Rejection (no)")


class CheckedRank:
    """Returns a whole number, or raises TypeError."""

    def __init__(self, name: str, policy: Rank) -> None:
        self.name = name
        self._policy = policy

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        answer: object = self._policy.rank(task, cluster)
        if isinstance(answer, int):
            return int(answer)
        raise TypeError(f"the rank {self.name!r} returned {answer!r}, not a whole number")


class CheckedScore:
    """Returns a number, or raises TypeError; the engine checks that it lies within 0..1."""

    def __init__(self, name: str, policy: Score) -> None:
        self.name = name
        self._policy = policy

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        return _number(self._policy.score(task, cluster))


class CheckedRawScore(CheckedScore):
    """A score with a raw value for display."""

    def __init__(self, name: str, policy: RawScore) -> None:
        super().__init__(name, policy)
        self._raw = policy

    def raw(self, task: TaskDescription, cluster: ClusterView) -> float:
        return _number(self._raw.raw(task, cluster))


def _number(answer: object) -> float:
    """Users may return a Decimal, or a number type of a library."""
    if isinstance(answer, (str, bytes)):
        raise TypeError(f"{answer!r} is not a number within 0..1")
    try:
        return float(answer)  # type: ignore[arg-type]  # a TypeError is handled below
    except (TypeError, ValueError):
        raise TypeError(f"{answer!r} is not a number within 0..1") from None

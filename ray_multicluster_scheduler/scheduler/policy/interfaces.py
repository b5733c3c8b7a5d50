"""The interfaces of the three kinds of policy: filter, rank and score. All are pure: same arguments, same answer.

A policy that raises, or returns an invalid answer, ends the item with PolicyEvaluationError; it never stops the
scheduler. Users register their own by name, by entry point or in configuration (``settings.policies``).

Built-in policies may promise more and are evaluated less often: a filter with ``lasting = True`` does not depend on our
own work there or on snapshots; one with a method ``concerns(task)`` accepts everything unless that is true. A rank or
score with a method ``trait(task)`` depends on nothing else of the item and can be evaluated for every cluster. A score
with ``counts_undeclared = True`` counts items of ours that hold no resources as load, and explanations say so; one with
a method ``lowest_near(score, share)`` decides itself which scores differ by at most this share.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView

_ROUNDING = 1e-9


@runtime_checkable
class Filter(Protocol):
    """May this item go to this cluster now?

    A filter may have the class attribute ``by_kind = True``. It promises that the verdict depends only on the item's
    ``kind`` and ``base_kind``, on whether it is a retry, and on the cluster, so that one answer holds for all such
    items.
    """

    name: str

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        """Called for every cluster in every decision. None means yes.

        A ``permanent`` rejection means that waiting cannot help; an item that every cluster rejects permanently fails.
        """


@runtime_checkable
class Rank(Protocol):
    """A strict order of clusters, before any score."""

    name: str

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        """Called for clusters that passed all filters. A higher number always wins over every later rank or score."""


@runtime_checkable
class Score(Protocol):
    """Rates a cluster for an item."""

    name: str

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        """Called for clusters that passed all filters. Must lie within 0..1; higher is better."""


@runtime_checkable
class RawScore(Score, Protocol):
    """A score with a raw value for display."""

    def raw(self, task: TaskDescription, cluster: ClusterView) -> float:
        """The value before it was mapped to 0..1."""


def is_by_kind(policy: Filter) -> bool:
    """Does one verdict hold for all items of a kind?"""
    return bool(getattr(policy, "by_kind", False))


def is_lasting(policy: Filter) -> bool:
    """Is the verdict also independent of our own work on the cluster?"""
    return is_by_kind(policy) and bool(getattr(policy, "lasting", False))


def counts_undeclared(policy: Score) -> bool:
    """Do items of ours that hold no resources lower the score?"""
    return bool(getattr(policy, "counts_undeclared", False))


def lowest_near_score(policy: Score, share: float, score: float) -> float:
    """The lowest score that differs from this one by at most ``share``, give or take a rounding error."""
    own = getattr(policy, "lowest_near", None)
    return (score * (1.0 - share) if own is None else float(own(score, share))) - _ROUNDING

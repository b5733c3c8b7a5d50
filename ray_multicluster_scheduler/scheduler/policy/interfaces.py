"""The three kinds of policy, each a name and one method. All are pure: same arguments, same answer.

A policy that raises ends the item with PolicyEvaluationError; it never stops the scheduler.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView


@runtime_checkable
class Filter(Protocol):
    """May this item go to this cluster now?"""

    name: str

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        """Called for every cluster in every decision. None means yes.

        A ``permanent`` rejection says that no amount of waiting helps; an item that every cluster rejects so, fails.
        """


@runtime_checkable
class Rank(Protocol):
    """A strict order of clusters, before any score."""

    name: str

    def rank(self, task: TaskDescription, cluster: ClusterView) -> int:
        """Called for clusters that passed all filters. A higher number always wins over every later rank or score."""


@runtime_checkable
class Score(Protocol):
    """How good is this cluster for this item?"""

    name: str

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        """Called for clusters that passed all filters. Must lie within 0..1; higher is better."""


@runtime_checkable
class RawScore(Score, Protocol):
    """A score that people know by another number, shown beside it."""

    def raw(self, task: TaskDescription, cluster: ClusterView) -> float:
        """The number before it was brought into 0..1."""

"""Which policy it is that goes wrong: an error names it, or nobody knows what to repair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.interfaces import Rank, RawScore, Score


def evaluation_error(what: str, task: TaskDescription, view: ClusterView, error: Exception) -> PolicyEvaluationError:
    """What the owner of the item is told."""
    return PolicyEvaluationError(
        f"Placing {task.kind} {task.id} failed: {what} raised {type(error).__name__} for cluster {view.name}: {error}.",
        task_id=task.id,
        cluster=view.name,
        next_step="repair the policy, or take it out of the configuration",
    )


def find_failing_policy(
    ranks: Iterable[Rank], scores: Mapping[str, Score], task: TaskDescription, view: ClusterView, error: Exception
) -> PolicyEvaluationError:
    """The same for one of these, found by asking each of them again: while all goes well nobody keeps count."""
    for rank in ranks:
        try:
            rank.rank(task, view)
        except Exception as again:  # noqa: BLE001 - it is the one that is looked for
            return evaluation_error(f"the rank {rank.name!r}", task, view, again)
    for name, score in scores.items():
        try:
            score.score(task, view)
            if isinstance(score, RawScore):
                score.raw(task, view)
        except Exception as again:  # noqa: BLE001 - it is the one that is looked for
            return evaluation_error(f"the score {name!r}", task, view, again)
    return evaluation_error("a rank or score, but not when it was asked again,", task, view, error)

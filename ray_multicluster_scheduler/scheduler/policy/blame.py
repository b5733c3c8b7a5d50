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


def blame(
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
            _check(score, task, view)
        except Exception as again:  # noqa: BLE001 - it is the one that is looked for
            return evaluation_error(f"the score {name!r}", task, view, again)
    return evaluation_error("a rank or score, but not when it was asked again,", task, view, error)


def _check(score: Score, task: TaskDescription, view: ClusterView) -> None:
    value: object = score.score(task, view)
    try:
        0.0 <= value <= 1.0  # type: ignore[operator]  # noqa: B015 - what a user's own code returned may be anything
    except (TypeError, ValueError):
        raise TypeError(f"{value!r} is not a number within 0..1") from None
    if isinstance(score, RawScore):
        score.raw(task, view)

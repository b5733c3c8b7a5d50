"""PolicyEngine: filter, rank, score; the whole decision as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import CandidateReport, Rejection, SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.fit import find_place
from ray_multicluster_scheduler.scheduler.policy import filters as filter_set
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.gpu_avoidance_policy import GpuAvoidancePolicy
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter, Rank, RawScore
from ray_multicluster_scheduler.scheduler.policy.preferred_cluster_policy import PreferredClusterPolicy
from ray_multicluster_scheduler.scheduler.policy.reasons import BETTER_IS_ASKED, NO_CLUSTERS, PLACED, unblocked_by
from ray_multicluster_scheduler.scheduler.policy.tag_affinity_policy import TagAffinityPolicy
from ray_multicluster_scheduler.scheduler.policy.verdict import hopeless, telling_row, waiting_sentence

_TIE_DIGITS = 9

WISHES: tuple[Rank, ...] = (PreferredClusterPolicy(), TagAffinityPolicy())
"""What the item itself asked for: can be told before anything is known of the cluster's load."""

RANKS: tuple[Rank, ...] = (*WISHES, GpuAvoidancePolicy())
"""Compared in this order, each one strictly before the next and before every score."""


class PolicyEngine:
    """Decides where an item goes. Deciding changes nothing; :meth:`note_placed` moves the round robin on.

    Raises ConfigurationError when ``settings.weights`` names a score that nobody registered.
    """

    def __init__(self, settings: Settings, *, local_python: str = "3.11", catalog: PolicyCatalog | None = None) -> None:
        catalog = catalog or PolicyCatalog()
        self._filters: tuple[Filter, ...] = (*filter_set.built_in(settings, local_python), *catalog.filters)
        self._filters_for_retries = tuple(
            one for one in self._filters if not isinstance(one, filter_set.SubmissionIntervalFilter)
        )
        self._scores = catalog.chosen_scores(settings.weights)
        self._raw = {name: score for name, score in self._scores.items() if isinstance(score, RawScore)}
        self._weights = settings.weights
        self._chain = settings.combine == "chain"
        self._placed = 0
        self._last_placed: dict[str, int] = {}

    def schedule(
        self, task_desc: TaskDescription, cluster_views: Iterable[ClusterView], now: float, *, retry: bool = False
    ) -> SchedulingDecision:
        """Where it goes, or why it waits. A ``retry`` is exempt from the submission interval.

        Raises PolicyEvaluationError when a policy raises.
        """
        filters = self._filters_for_retries if retry else self._filters
        views = list(cluster_views)
        rows = tuple(self._report(task_desc, view, filters) for view in views)
        feasible = [row for row in rows if row.feasible]
        if not rows:
            return SchedulingDecision(task_desc.id, now, None, NO_CLUSTERS, "no cluster is configured")
        if not feasible:
            row = telling_row(rows)
            code = row.rejections[0].code
            sentence = waiting_sentence(rows)
            return SchedulingDecision(task_desc.id, now, None, code, sentence, rows, unblocked_by(code, row.cluster))
        best = self._best(feasible)
        better = _better_that_is_being_asked(task_desc, views, rows, best)
        if better is not None:
            sentence = f"{better} is a better match than {best.cluster} and is being asked what is free"
            return SchedulingDecision(
                task_desc.id, now, None, BETTER_IS_ASKED, sentence, rows, unblocked_by(BETTER_IS_ASKED, better)
            )
        sentence = self._why(best, len(feasible), len(rows))
        return SchedulingDecision(task_desc.id, now, best.cluster, PLACED, sentence, rows)

    def note_placed(self, cluster: str) -> None:
        """An item was sent there: among equals it is now the last in turn."""
        self._placed += 1
        self._last_placed[cluster] = self._placed

    def _report(self, task: TaskDescription, view: ClusterView, filters: tuple[Filter, ...]) -> CandidateReport:
        rejections = tuple(_rejections(task, view, filters))
        if rejections:
            return CandidateReport(view.name, rejections)
        try:
            return self._scored(task, view)
        except PolicyEvaluationError:
            raise
        except Exception as error:
            raise _evaluation_error("a rank or score", task, view, error) from error

    def _scored(self, task: TaskDescription, view: ClusterView) -> CandidateReport:
        ranks = {rank.name: rank.rank(task, view) for rank in RANKS}
        scores = {name: score.score(task, view) for name, score in self._scores.items()}
        for name, value in scores.items():
            if not 0.0 <= value <= 1.0:
                error = ValueError(f"{value!r} is not within 0..1")
                raise _evaluation_error(f"the score {name!r}", task, view, error)
        raw = {name: score.raw(task, view) for name, score in self._raw.items()}
        total = sum(self._weights[name] * value for name, value in scores.items())
        return CandidateReport(view.name, (), ranks, scores, raw, total, _one_node(task, view))

    def _best(self, feasible: Sequence[CandidateReport]) -> CandidateReport:
        top = max(map(self._key, feasible))
        equals = [row for row in feasible if self._key(row) == top]
        return min(equals, key=lambda row: self._last_placed.get(row.cluster, 0))

    def _key(self, row: CandidateReport) -> tuple[float, ...]:
        scores = row.scores.values() if self._chain else (row.total or 0.0,)
        return (*row.ranks.values(), *(round(value, _TIE_DIGITS) for value in scores))

    def _why(self, row: CandidateReport, feasible: int, clusters: int) -> str:
        reasons = [name for name, rank in row.ranks.items() if rank and name != GpuAvoidancePolicy.name]
        scores = [f"{name} score {row.raw_scores.get(name, value):.1f}" for name, value in row.scores.items()]
        return f"{row.cluster}: {', '.join([*reasons, *scores])}; {feasible} of {clusters} clusters could take it"


def _rejections(task: TaskDescription, view: ClusterView, filters: Iterable[Filter]) -> Iterator[Rejection]:
    """What every filter that says no says: the table shows all of it, not just the first."""
    for one in filters:
        try:
            rejection = one.check(task, view)
        except Exception as error:
            raise _evaluation_error(f"the filter {one.name!r}", task, view, error) from error
        if rejection is not None:
            yield rejection


def _better_that_is_being_asked(
    task: TaskDescription, views: Sequence[ClusterView], rows: Sequence[CandidateReport], best: CandidateReport
) -> str | None:
    """A cluster that the item asked for more than for ``best``, and whose answer is only a moment away."""
    reached = tuple(best.ranks[rank.name] for rank in WISHES)
    for view, row in zip(views, rows, strict=True):
        if view.trouble is None or not view.trouble.being_asked or hopeless(row):
            continue
        if tuple(rank.rank(task, view) for rank in WISHES) > reached:
            return view.name
    return None


def _one_node(task: TaskDescription, view: ClusterView) -> str | None:
    place = find_place(task, view.nodes) or {}
    return next(iter(place)) if len(place) == 1 else None


def _evaluation_error(what: str, task: TaskDescription, view: ClusterView, error: Exception) -> PolicyEvaluationError:
    return PolicyEvaluationError(
        f"Placing {task.kind} {task.id} failed: {what} raised {type(error).__name__} for cluster {view.name}: {error}.",
        task_id=task.id,
        cluster=view.name,
        next_step="repair the policy, or take it out of the configuration",
    )

"""PolicyEngine: filter, rank and score clusters for an item; returns the whole decision as data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile

from ray_multicluster_scheduler.common.exception import ConfigurationError, PolicyEvaluationError
from ray_multicluster_scheduler.common.model import (
    CandidateReport,
    Rejection,
    SchedulingDecision,
    TaskDescription,
)
from ray_multicluster_scheduler.common.model.decision import CandidateTable
from ray_multicluster_scheduler.common.model.resources import fits
from ray_multicluster_scheduler.common.tables import MAX_NAMED, main_rejection, undeclared_load
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement, needs_new_node
from ray_multicluster_scheduler.scheduler.policy import filters as filter_set
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.gpu_avoidance_policy import GpuAvoidancePolicy
from ray_multicluster_scheduler.scheduler.policy.interfaces import (
    Filter,
    Rank,
    RawScore,
    Score,
    counts_undeclared,
    is_by_kind,
    is_lasting,
    lowest_near_score,
)
from ray_multicluster_scheduler.scheduler.policy.preferred_cluster_policy import PreferredClusterPolicy
from ray_multicluster_scheduler.scheduler.policy.reasons import (
    BETTER_IS_ASKED,
    NO_CLUSTERS,
    PLACED,
    POLICY_FAILED,
    unblocked_by,
)
from ray_multicluster_scheduler.scheduler.policy.room_policy import RoomPolicy
from ray_multicluster_scheduler.scheduler.policy.tag_affinity_policy import TagAffinityPolicy
from ray_multicluster_scheduler.scheduler.policy.verdict import (
    closest_candidate,
    permanently_rejected,
    unblocking_conditions,
    waiting_sentence,
)
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.queue.shape import shape_of

_TIE_DIGITS = 9
_MAX_CACHED = 1000
_MAX_ROWS = 64
_LOAD_RANKS = (GpuAvoidancePolicy.name, RoomPolicy.name)
"""Ranks that decide most placements, and therefore are not named as the reason of one."""

REQUESTED_RANKS: tuple[Rank, ...] = (PreferredClusterPolicy(), TagAffinityPolicy())
"""Ranks by the preferences of the item: they do not depend on the load of the cluster."""

LATER_RANKS: tuple[Rank, ...] = (RoomPolicy(), GpuAvoidancePolicy())
"""Compared after these preferences and after the ranks that users added, before every score."""


class PolicyEngine:
    """Decides where an item goes. A decision changes nothing; :meth:`record_placement` advances the rotation among
    clusters with near-equal scores.

    To find the winner, the first rejection of a cluster is enough, and verdicts that depend only on the kind of item
    are cached per view. The full candidate table is computed when it is read.

    Raises ConfigurationError when ``settings.weights`` names an unknown score, or when a filter has the name of a
    built-in one.
    """

    def __init__(self, settings: Settings, *, local_python: str = "3.11", catalog: PolicyCatalog | None = None) -> None:
        catalog = catalog or PolicyCatalog()
        self.quota = QuotaLedger()
        """The pools, and what items use of their quota: the state machine keeps it, a filter reads it."""
        built_in = filter_set.built_in_filters(settings, local_python, self.quota)
        taken = {one.name for one in built_in}.intersection(one.name for one in catalog.filters)
        if taken:
            raise ConfigurationError(
                f"There are two filters named {min(taken)!r}, one of them built in.", next_step="rename your own"
            )
        filters: tuple[Filter, ...] = (*built_in, *catalog.filters)
        self._filters = filters
        self.filter_names = tuple(one.name for one in filters)
        """Every filter that is applied to each cluster; a table row lists only those that rejected."""
        self._stable_filters = tuple(one for one in filters if is_lasting(one))
        self._kind_filters = tuple(one for one in filters if is_by_kind(one) and not is_lasting(one))
        self._item_filters = tuple(one for one in filters if not is_by_kind(one))
        self._optional_filters = tuple((one, getattr(one, "concerns", None)) for one in self._item_filters)
        self._constraint_filters = tuple(one for one in filters if isinstance(one, filter_set.CONSTRAINT_FILTERS))
        self._connection_filters = tuple(one for one in filters if isinstance(one, filter_set.CONNECTION_FILTERS))
        self._threshold = next(one for one in filters if isinstance(one, filter_set.ThresholdFilter))
        self._ranks: tuple[Rank, ...] = (*REQUESTED_RANKS, *catalog.ranks, *LATER_RANKS)
        self._scores = catalog.chosen_scores(settings.weights)
        # With users' filters every cluster is checked: an error in one must be reported for each.
        self._traits = None if catalog.filters else _traits_of([*self._ranks, *self._scores.values()])
        self._raw = {name: score for name, score in self._scores.items() if isinstance(score, RawScore)}
        self._weights = settings.weights
        self._score_weights = tuple(settings.weights[name] for name in self._scores)
        self._chain = settings.combine == "chain"
        self._compared = len(self._ranks) + (len(self._scores) if self._chain else 1)
        """How much of a comparison key decides the order; only near-equality is read from the rest."""
        self._lowest_near = [
            partial(lowest_near_score, score, settings.near_equal_scores) for score in self._scores.values()
        ]
        self._counting = any(counts_undeclared(score) for score in self._scores.values())
        self._placed = 0
        self._last_placed: dict[str, int] = {}

    def schedule(
        self, task_desc: TaskDescription, cluster_views: Iterable[ClusterView], now: float, *, retry: bool = False
    ) -> SchedulingDecision:
        """The full decision: a cluster, or the reasons to wait. A ``retry`` is exempt from the submission interval.

        Raises PolicyEvaluationError when a policy raises.
        """
        views = tuple(cluster_views)
        placed = self.place(task_desc, views, views, now, retry=retry)
        if placed is not None:
            return placed.in_full()
        return self.reject(task_desc, views, now, retry=retry)

    def reject(
        self, task: TaskDescription, views: tuple[ClusterView, ...], now: float, *, retry: bool = False
    ) -> SchedulingDecision:
        """The decision for an item that no cluster accepts: why not."""
        if not views:
            return SchedulingDecision(task.id, now, None, NO_CLUSTERS, "no cluster is configured")
        rows = self._table(task, views, retry)
        code = main_rejection(closest_candidate(rows)).code
        sentence = waiting_sentence([row for row in rows if not permanently_rejected(row)] or rows)
        return SchedulingDecision(task.id, now, None, code, sentence, rows, unblocking_conditions(rows))

    def place(
        self,
        task: TaskDescription,
        opened: Sequence[ClusterView],
        views: tuple[ClusterView, ...],
        now: float,
        *,
        retry: bool = False,
    ) -> SchedulingDecision | None:
        """As :meth:`schedule` if only ``opened`` of the ``views`` may accept it; None if none does."""
        found = self._best(task, opened, retry)
        if found is None:
            return None
        best, rival = found
        table = self.table(task, views, retry=retry)
        better = self._better_pending_cluster(task, views, best, retry=retry)
        if better is not None:
            sentence = f"{better} is a better match than {best.name} and its snapshot is on its way"
            return SchedulingDecision(
                task.id, now, None, BETTER_IS_ASKED, sentence, table, unblocked_by(BETTER_IS_ASKED, better)
            )
        sentence = self._placement_sentence(task, best, rival)
        return SchedulingDecision(task.id, now, best.name, PLACED, sentence, table)

    def table(self, task: TaskDescription, views: tuple[ClusterView, ...], *, retry: bool) -> CandidateTable:
        """The candidate table, computed lazily: a policy that raises then is reported in its row."""
        return CandidateTable(partial(self._lazy_rows, task, views, retry))

    def first_rejection(self, task: TaskDescription, view: ClusterView, *, retry: bool) -> Rejection | None:
        """The first rejection of this cluster; None if it accepts. Raises PolicyEvaluationError."""
        return self._first_rejection(task, view, self._filters_for(task), retry)

    def _filters_for(self, task: TaskDescription) -> list[Filter]:
        """The filters that must be evaluated for this item, besides those by kind."""
        return [one for one, concerns in self._optional_filters if concerns is None or concerns(task)]

    def _first_rejection(
        self, task: TaskDescription, view: ClusterView, filters: Sequence[Filter], retry: bool
    ) -> Rejection | None:
        closed = self._kind_rejections(task, view, retry=retry)
        if closed:
            return next(iter(closed.values()))
        one: Filter | None = None
        try:
            for one in filters:
                rejection = one.check(task, view)
                if rejection is not None:
                    return rejection
        except Exception as error:
            raise evaluation_error(f"the filter {getattr(one, 'name', one)!r}", task, view, error) from error
        return None

    def is_reachable(self, task: TaskDescription, view: ClusterView) -> bool:
        """Can an item that starts no work go there, whatever keeps new work away?"""
        return all(one.check(task, view) is None for one in self._connection_filters)

    def violates_constraints(self, task: TaskDescription, view: ClusterView) -> bool:
        """Does the item have constraints that this cluster never meets?"""
        return any(one.check(task, view) is not None for one in self._constraint_filters)

    def is_closed(self, kind: TaskDescription, view: ClusterView, *, retry: bool) -> bool:
        """Does the cluster reject every item of this kind? ``kind`` is an empty item of that kind."""
        key = self._closed_key(kind, retry)
        known: bool | None = view.cache.get(key)
        if known is None:
            above = view.new_node is None and self._threshold.check(kind, view) is not None
            known = view.cache[key] = above or self._is_closed_by_kind(kind, view, retry=retry)
        return known

    def _is_closed_by_kind(self, kind: TaskDescription, view: ClusterView, *, retry: bool) -> bool:
        try:
            return bool(self._kind_rejections(kind, view, retry=retry))
        except PolicyEvaluationError:
            return False  # each item then ends with that error

    def prefilter(
        self, kind: TaskDescription | None, views: Sequence[ClusterView], *, retry: bool
    ) -> Sequence[ClusterView]:
        """A coarse check, much cheaper than the filters: drops only clusters that would reject. None: a gang."""
        if kind is None:
            return views
        key = self._closed_key(kind, retry)
        return [
            view
            for view in views
            if not (known if (known := view.cache.get(key)) is not None else self.is_closed(kind, view, retry=retry))
        ]

    def _closed_key(self, kind: TaskDescription, retry: bool) -> Hashable:
        return self, "closed", kind.kind, retry  # of each kind there is one such item

    def _kind_rejections(self, task: TaskDescription, view: ClusterView, *, retry: bool) -> dict[str, Rejection]:
        """The rejections of the filters that depend only on the kind, by name."""
        key = (self, task.kind, task.base_kind, retry)
        known: dict[str, Rejection] | None = view.cache.get(key)
        if known is None:
            lasting: dict[str, Rejection] | None = view.stable_cache.get(key)
            if lasting is None:
                gates = [
                    one
                    for one in self._stable_filters
                    if not (retry and isinstance(one, filter_set.SubmissionIntervalFilter))
                ]
                lasting = view.stable_cache[key] = collect_rejections(gates, task, view)
            known = view.cache[key] = {**lasting, **collect_rejections(self._kind_filters, task, view)}
        return known

    def _table(self, task: TaskDescription, views: tuple[ClusterView, ...], retry: bool) -> tuple[CandidateReport, ...]:
        key = self._row_key(task, retry)
        return tuple(self._report(task, view, key, retry=retry) for view in views)

    def _lazy_rows(
        self, task: TaskDescription, views: tuple[ClusterView, ...], retry: bool
    ) -> tuple[CandidateReport, ...]:
        rows, key = [], self._row_key(task, retry)
        for view in views:
            try:
                rows.append(self._report(task, view, key, retry=retry))
            except PolicyEvaluationError as error:
                rows.append(CandidateReport(view.name, (Rejection(POLICY_FAILED, error.message),)))
        return tuple(rows)

    def _row_key(self, task: TaskDescription, retry: bool) -> Hashable:
        """Items with equal keys get equal rows. None: a user's policy may read everything of an item."""
        return None if self._traits is None else (shape_of(task, retry=retry), *(of(task) for of in self._traits))

    def _report(self, task: TaskDescription, view: ClusterView, key: Hashable, *, retry: bool) -> CandidateReport:
        """One row of the table."""
        if key is None:
            return self._new_report(task, view, retry=retry)
        rows: dict[Hashable, CandidateReport] = view.cache.setdefault((self, "rows"), {})
        row = rows.get(key)
        if row is None:
            if len(rows) >= _MAX_ROWS:
                rows.clear()
            row = rows[key] = self._new_report(task, view, retry=retry)
        return row

    def _new_report(self, task: TaskDescription, view: ClusterView, *, retry: bool) -> CandidateReport:
        """A row with the rejections of all filters, not only the first."""
        closed = self._kind_rejections(task, view, retry=retry)
        found = collect_rejections(self._item_filters, task, view)
        rejections = tuple(found.values())
        if closed:
            found.update(closed)
            rejections = tuple(found[one.name] for one in self._filters if one.name in found)
        return CandidateReport(view.name, rejections) if rejections else self._scored_row(task, view)

    def _scored_row(self, task: TaskDescription, view: ClusterView) -> CandidateReport:
        try:
            return self._scored(task, view)
        except PolicyEvaluationError:
            raise
        except Exception as error:
            raise find_failing_policy(self._ranks, self._scores, task, view, error) from error

    def record_placement(self, cluster: str) -> None:
        """An item was sent there: among clusters with near-equal scores it is now last in turn."""
        self._placed += 1
        self._last_placed[cluster] = self._placed

    def _scored(self, task: TaskDescription, view: ClusterView) -> CandidateReport:
        ranks = {rank.name: rank.rank(task, view) for rank in self._ranks}
        scores = {
            name: self._check_score_range(name, score.score(task, view), task, view)
            for name, score in self._scores.items()
        }
        raw = {name: score.raw(task, view) for name, score in self._raw.items()}
        total = sum(self._weights[name] * value for name, value in scores.items())
        counted = view.undeclared if self._counting else 0
        return CandidateReport(view.name, (), ranks, scores, raw, total, _one_node(task, view), counted)

    def _best(
        self, task: TaskDescription, opened: Sequence[ClusterView], retry: bool
    ) -> tuple[ClusterView, ClusterView | None] | None:
        """The cluster whose turn it is among the best that accept the item, and another one with near-equal scores that
        accepts it, if there is one; None if no cluster accepts it."""
        filters = self._filters_for(task)
        if len(opened) > 1 and self._traits is not None:
            return self._best_by_cached_keys(task, opened, filters, retry)
        feasible = [view for view in opened if self._first_rejection(task, view, filters, retry) is None]
        if len(feasible) < 2:
            return (feasible[0], None) if feasible else None
        group = self._near_best(feasible, [self._comparison_key(task, view) for view in feasible])
        return group[0], next(iter(group[1:]), None)

    def _best_by_cached_keys(
        self, task: TaskDescription, opened: Sequence[ClusterView], filters: Sequence[Filter], retry: bool
    ) -> tuple[ClusterView, ClusterView | None] | None:
        """The same if all ranks and scores can be computed for any cluster and cached per trait: then few clusters need
        all filters."""
        trait = (self, *(of(task) for of in self._traits or ()))
        if len(opened[0].cache) > _MAX_CACHED:  # the view stays the same while each item has other tags
            for view in opened:
                view.cache.clear()
        keys = []
        for view in opened:
            key = view.cache.get(trait) if view.new_node is None else self._comparison_key(task, view)
            if key is None:
                key = view.cache[trait] = self._comparison_key(task, view)
            keys.append(key)
        group = self._near_best(opened, keys)
        best = group[0]
        if self._first_rejection(task, best, filters, retry) is None:
            return best, self._runner_up(task, group[1:], filters, retry) if len(group) > 1 else None
        others = [at for at, view in enumerate(opened) if view is not best and self._may_have_capacity(task, view)]
        for group in self._near_groups(opened, keys, others):
            for at, view in enumerate(group):
                if self._first_rejection(task, view, filters, retry) is None:
                    return view, self._runner_up(task, group[at + 1 :], filters, retry)
        return None

    def _runner_up(
        self, task: TaskDescription, near: Sequence[ClusterView], filters: Sequence[Filter], retry: bool
    ) -> ClusterView | None:
        """One of these clusters that accepts the item too. Only a few are asked."""
        accepting = (view for view in near[:MAX_NAMED] if self._first_rejection(task, view, filters, retry) is None)
        return next(accepting, None)

    def _near_best(self, views: Sequence[ClusterView], keys: Sequence[tuple[float, ...]]) -> list[ClusterView]:
        """The clusters whose scores are near-equal to the best ones, the one whose turn it is first."""
        best = max(keys)
        if len(self._scores) == 1:  # the usual case, without a call for each cluster
            low, cut = self._lowest_near[0](best[-1]), len(self._ranks)
            ranks = best[:cut]
            near = [at for at, key in enumerate(keys) if key[-1] >= low and key[:cut] == ranks]
        else:
            near = [at for at, key in enumerate(keys) if self._is_near(key, best)]
        return self._in_turn(views, near)

    def _near_groups(
        self, views: Sequence[ClusterView], keys: Sequence[tuple[float, ...]], some: Iterable[int]
    ) -> Iterator[list[ClusterView]]:
        """These clusters from the best to the worst, in groups with near-equal scores, each in turn."""

        def is_near(best: tuple[float, ...], at: int) -> bool:
            return self._is_near(keys[at], best)

        left = sorted(some, key=keys.__getitem__, reverse=True)
        while left:
            best = keys[left[0]]
            near = list(takewhile(partial(is_near, best), left))
            del left[: len(near)]
            yield self._in_turn(views, near)

    def _is_near(self, key: tuple[float, ...], best: tuple[float, ...]) -> bool:
        """Are the ranks equal, and all scores near-equal?"""
        compared, cut = self._compared, len(self._ranks)
        if key[:compared] == best[:compared]:
            return True
        return key[:cut] == best[:cut] and all(
            min(one, other) >= lowest(max(one, other))
            for one, other, lowest in zip(key[compared:], best[compared:], self._lowest_near, strict=True)
        )

    def _in_turn(self, views: Sequence[ClusterView], some: Sequence[int]) -> list[ClusterView]:
        """These clusters, the one that got an item least recently first."""
        if len(some) == 1:
            return [views[some[0]]]
        last = self._last_placed
        return [views[at] for _, at in sorted([(last.get(views[at].name, 0), at) for at in some])]

    @staticmethod
    def _may_have_capacity(task: TaskDescription, view: ClusterView) -> bool:
        """Coarse: False only if the filters would reject too."""
        if task.gang is not None:
            return True
        return any(fits(task.placement, room) for room in view.max_free(task.kind))

    def _comparison_key(self, task: TaskDescription, view: ClusterView) -> tuple[float, ...]:
        """By what clusters are compared: rank after rank, then the scores, added up or one after another. What follows,
        each score, tells whether two clusters are near-equal."""
        try:
            ranks = [rank.rank(task, view) for rank in self._ranks]
            scores = [
                self._check_score_range(name, score.score(task, view), task, view)
                for name, score in self._scores.items()
            ]
        except PolicyEvaluationError:
            raise
        except Exception as error:
            raise find_failing_policy(self._ranks, self._scores, task, view, error) from error
        if self._chain:
            return (*ranks, *[round(value, _TIE_DIGITS) for value in scores], *scores)
        total = sum(weight * value for weight, value in zip(self._score_weights, scores, strict=True))
        return (*ranks, round(total, _TIE_DIGITS), *scores)

    def _check_score_range(self, name: str, value: float, task: TaskDescription, view: ClusterView) -> float:
        if 0.0 <= value <= 1.0:
            return value
        raise evaluation_error(f"the score {name!r}", task, view, ValueError(f"{value!r} is not within 0..1"))

    @staticmethod
    def preference(task: TaskDescription, view: ClusterView) -> tuple[int, ...]:
        """The item's own preference for the cluster, as a sort key; larger is better."""
        return tuple(rank.rank(task, view) for rank in REQUESTED_RANKS)

    def _better_pending_cluster(
        self, task: TaskDescription, views: Iterable[ClusterView], best: ClusterView, *, retry: bool
    ) -> str | None:
        """A cluster that the item prefers to ``best`` and whose snapshot is on its way. An item that declares nothing
        fits everywhere: it prefers an equal cluster with fewer such items of ours, if that has a dashboard to ask."""
        reached: tuple[int, ...] | None = None
        counted = best.undeclared if self._counting and not task.placement else 0
        for view in views:
            if view.problem is None or not view.problem.being_asked:
                continue
            reached = reached or self.preference(task, best)
            preference = self.preference(task, view)
            idler = view.undeclared < counted and view.metadata.dashboard is not None
            better = preference > reached or (idler and preference == reached)
            if better and not permanently_rejected(self._new_report(task, view, retry=retry)):
                return view.name
        return None

    def _placement_sentence(self, task: TaskDescription, view: ClusterView, rival: ClusterView | None) -> str:
        """The winner's distinguishing ranks, its scores as people know them, and with whom it took turns."""
        try:
            reasons = [rank.name for rank in self._ranks if rank.name not in _LOAD_RANKS and rank.rank(task, view)]
            scores = [f"{name} score {self._display_score(name, task, view):.1f}" for name in self._scores]
        except PolicyEvaluationError:
            raise
        except Exception as error:
            raise find_failing_policy(self._ranks, self._scores, task, view, error) from error
        if not reasons and not scores:
            reasons.append("in turn, as the configuration names no score")
        elif rival is not None:
            scores.append(f"in turn with {rival.name}, as their scores are near-equal")
        if self._counting and view.undeclared:
            scores.append(undeclared_load(view.undeclared))
        if needs_new_node(task, view):
            reasons.append("on a node that is still to be added")
        return f"{view.name}: {', '.join([*reasons, *scores])}"

    def _display_score(self, name: str, task: TaskDescription, view: ClusterView) -> float:
        raw = self._raw.get(name)
        value = self._check_score_range(name, self._scores[name].score(task, view), task, view)
        return value if raw is None else raw.raw(task, view)


def _traits_of(policies: Iterable[Rank | Score]) -> list[Callable[[TaskDescription], Hashable]] | None:
    """The functions that return everything of an item these policies read; None if one of them does not declare it."""
    declared = [getattr(one, "trait", None) for one in policies if not isinstance(one, RoomPolicy)]
    traits = [one for one in declared if one is not None]
    return traits if len(traits) == len(declared) else None


def _one_node(task: TaskDescription, view: ClusterView) -> str | None:
    place = find_placement(task, view.nodes, view.new_node) or {}
    return next(iter(place)) if len(place) == 1 else None


def collect_rejections(filters: Iterable[Filter], task: TaskDescription, view: ClusterView) -> dict[str, Rejection]:
    """The rejections of these filters, by name."""
    rejections = {}
    for one in filters:
        try:
            rejection = one.check(task, view)
        except Exception as error:
            raise evaluation_error(f"the filter {one.name!r}", task, view, error) from error
        if rejection is not None:
            rejections[one.name] = rejection
    return rejections


def evaluation_error(what: str, task: TaskDescription, view: ClusterView, error: Exception) -> PolicyEvaluationError:
    """The error for the owner of the item."""
    return PolicyEvaluationError(
        f"Placing {task.kind} {task.id} failed: {what} raised {type(error).__name__} for cluster {view.name}: {error}.",
        task_id=task.id,
        cluster=view.name,
        next_step="repair the policy, or remove it from the configuration",
    )


def find_failing_policy(
    ranks: Iterable[Rank], scores: Mapping[str, Score], task: TaskDescription, view: ClusterView, error: Exception
) -> PolicyEvaluationError:
    """The error with the name of the rank or score that raised, found by evaluating each again."""
    for rank in ranks:
        try:
            rank.rank(task, view)
        except Exception as again:  # noqa: BLE001 - this is the search for it
            return evaluation_error(f"the rank {rank.name!r}", task, view, again)
    for name, score in scores.items():
        try:
            score.score(task, view)
            if isinstance(score, RawScore):
                score.raw(task, view)
        except Exception as again:  # noqa: BLE001 - this is the search for it
            return evaluation_error(f"the score {name!r}", task, view, again)
    return evaluation_error("a rank or score, but not when it was repeated,", task, view, error)

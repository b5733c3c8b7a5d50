"""Properties checked on each state dump: the reason of every waiting item, and which circuit breakers are open."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

from ray_multicluster_scheduler.common.model.resources import plus
from ray_multicluster_scheduler.simulation.checker.history_state import ClusterState, HistoryState, ItemState
from ray_multicluster_scheduler.simulation.checker.property import Entry, StateProperty
from ray_multicluster_scheduler.simulation.history import StateDump

_ROUNDING = 1e-3


class EveryWaitingTaskHasATrueReason(StateProperty):
    """A reason about a cluster must be true of at least one cluster that the item may go to."""

    name = "every_waiting_task_has_a_true_reason"
    sentence = "Every waiting item has a reason, and the reason is true at that moment."

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is not StateDump:
            return
        reasons = entry.content.waiting
        for task_id in state.waiting:
            if task_id not in reasons:
                self.report(entry, f"{task_id} waits without a reason")
        for task_id, (code, sentence) in reasons.items():
            item = state.items.get(task_id)
            if item is None or not sentence or not _is_true(code, item, state, entry.at):
                self.report(entry, f"{task_id} reports {code} as the reason to wait ({sentence}), which is not true")


class UserErrorsNeverOpenABreaker(StateProperty):
    """A breaker may be open only if the cluster itself failed ``breaker_failures`` times in a row."""

    name = "user_errors_never_open_a_breaker"
    sentence = "Only failures of a cluster itself keep work away from it; exceptions and crashes of user code never do."

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is not StateDump:
            return
        for name in entry.content.open_breakers:
            cluster = state.clusters.get(name)
            if cluster is not None and not cluster.breaker_may_be_open:
                self.report(entry, f"the breaker of {name} is open, and {name} has failed too rarely")


class _Waiting(NamedTuple):
    """A waiting item."""

    item: ItemState
    state: HistoryState
    at: float


class _Candidate(NamedTuple):
    """A waiting item, and a cluster that it may go to."""

    item: ItemState
    cluster: ClusterState
    state: HistoryState
    at: float


def _is_true(code: str, item: ItemState, state: HistoryState, at: float) -> bool:
    if code in _ITEM_REASONS:
        return _ITEM_REASONS[code](_Waiting(item, state, at))
    reason = _CLUSTER_REASONS.get(code)
    candidates = [one for one in state.clusters.values() if one.accepts(item)]
    return reason is not None and any(reason(_Candidate(item, one, state, at)) for one in candidates)


def _has_unfinished_dependency(item: ItemState, state: HistoryState) -> bool:
    others = [state.items.get(other) for other in item.task.after]
    return any(one is not None and (one.state is None or not one.state.terminal) for one in others)


def _is_fresh(cluster: ClusterState, state: HistoryState, at: float) -> bool:
    return cluster.is_fresh(at, state.settings)


_ITEM_REASONS: dict[str, Callable[[_Waiting], bool]] = {
    "HELD": lambda one: one.item.held,
    "FREES_ROOM": lambda one: one.item.code == "FREES_ROOM",
    "OWNER_PAUSED": lambda one: one.item.task.owner in one.state.paused_owners,
    "OWNER_LIMIT": lambda one: (
        one.item.task.owner not in one.state.paused_owners and not one.state.owner_may_start(one.item)
    ),
    "WAITS_FOR_ARGUMENTS": lambda one: one.item.lacks_arguments,
    "WAITS_FOR_DEPENDENCIES": lambda one: _has_unfinished_dependency(one.item, one.state),
    "STARTS_LATER": lambda one: one.item.task.start_after is not None and one.item.task.start_after > one.at,
    "NO_CLUSTERS": lambda one: not one.state.clusters,
    "BETTER_IS_ASKED": lambda one: any(
        not _is_fresh(cluster, one.state, one.at) for cluster in one.state.clusters.values()
    ),
}


def _no_capacity(candidate: _Candidate) -> bool:
    """True unless one node certainly has room, whatever the snapshots do not show yet."""
    cluster, task = candidate.cluster, candidate.item.task
    if task.gang is not None or candidate.state.may_hold_reservation(candidate.at):
        return True
    ours: dict[str, float] = reduce(plus, (one.task.placement for one in cluster.live.values()), {})
    used = cluster.max_usage(candidate.at)
    return not any(
        all(
            amount + ours.get(name, 0.0) + used.get(node, {}).get(name, 0.0) <= total.get(name, 0.0)
            for name, amount in task.placement.items()
        )
        for node, total in cluster.totals().items()
    )


def _above_threshold(candidate: _Candidate) -> bool:
    """True unless less than the threshold is certainly in use; a reservation for another item counts as use."""
    cluster, limits = candidate.cluster, candidate.state.settings.resource_threshold
    totals, used = cluster.totals(), cluster.max_usage(candidate.at)
    for name, limit in (("CPU", limits.cpu), ("memory", limits.memory), ("GPU", limits.gpu)):
        total = sum(one.get(name, 0.0) for one in totals.values())
        seen = sum(used.get(node, {}).get(name, 0.0) for node in totals)
        ours = sum(one.task.placement.get(name, 0.0) for one in cluster.live.values())
        reserved = candidate.state.may_hold_reservation(candidate.at)
        if limit < 1 and total and (reserved or (seen + ours) / total > limit - _ROUNDING):
            return True
    return False


def _serial(candidate: _Candidate) -> bool:
    busy = any(not (one.task.runs_actors and one.started) for one in candidate.cluster.live.values())
    return candidate.state.settings.execution_mode == "serial" and busy


def _submission_interval(candidate: _Candidate) -> bool:
    settings, item = candidate.state.settings, candidate.item
    ruled = item.attempt == 0 and item.task.base_kind in settings.submission_interval_kinds
    return ruled and candidate.cluster.may_be_spaced(candidate.at, settings)


def _max_running_jobs(candidate: _Candidate) -> bool:
    cluster = candidate.cluster
    jobs = sum(one.task.kind == "job" for one in cluster.live.values())
    return candidate.item.task.kind == "job" and jobs >= cluster.metadata.max_running_jobs


def _too_big(candidate: _Candidate) -> bool:
    task = candidate.item.task
    totals = list(candidate.cluster.totals().values())
    together = {name: sum(total.get(name, 0.0) for total in totals) for name in task.placement}
    sizes = [together] if task.kind in ("job", "gang") else totals
    return not any(all(amount <= size.get(name, 0.0) for name, amount in task.placement.items()) for size in sizes)


def _exceeds_quota(candidate: _Candidate) -> bool:
    return bool(candidate.state.exceeded_quota(candidate.item, candidate.cluster.name, claims=True))


_CLUSTER_REASONS: dict[str, Callable[[_Candidate], bool]] = {
    "NO_CAPACITY": _no_capacity,
    "ABOVE_THRESHOLD": _above_threshold,
    "SERIAL": _serial,
    "SUBMISSION_INTERVAL": _submission_interval,
    "MAX_RUNNING_JOBS": _max_running_jobs,
    "MAX_IN_FLIGHT": lambda one: len(one.cluster.live) >= one.cluster.metadata.max_in_flight,
    "CORDONED": lambda one: one.cluster.cordoned,
    "QUEUE_PAUSED": lambda one: one.cluster.paused,
    "BREAKER_OPEN": lambda one: one.cluster.breaker_may_be_open,
    "BREAKER_HALF_OPEN": lambda one: one.cluster.breaker_may_be_open,
    "CLUSTER_SUSPECT": lambda one: one.cluster.link == "down",
    "CLUSTER_DEAD": lambda one: one.cluster.dead_since is not None,
    "CLUSTER_LOST": lambda one: one.cluster.link == "down",
    "CLUSTER_UNKNOWN": lambda one: one.cluster.latest_snapshot is None,
    "CLUSTER_UNREACHABLE": lambda one: one.cluster.snapshot_failed,
    "CLUSTER_MISCONFIGURED": lambda one: one.cluster.snapshot_failed,
    "STALE_SNAPSHOT": lambda one: not _is_fresh(one.cluster, one.state, one.at + _ROUNDING),
    "HEAD_SILENT": lambda one: not one.cluster.head_ok,
    "LINK_FAILED": lambda one: one.at - one.cluster.link_failed_at <= one.state.settings.breaker_recovery_s,
    "DASHBOARD_SILENT": lambda one: one.item.task.kind == "job" and not one.cluster.dashboard_ok,
    "TOO_BIG": _too_big,
    "POOL_FULL": _exceeds_quota,
    "BORROW_LIMIT": _exceeds_quota,
    "POOL_TOO_SMALL": _exceeds_quota,
    "POOL_NOT_HERE": _exceeds_quota,
}

"""Properties of placement: capacity, rules, order, starvation, and no delay on an idle fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from ray_multicluster_scheduler.common.model.resources import plus
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist
from ray_multicluster_scheduler.simulation.checker.history_state import (
    WINDOW_S,
    ClusterState,
    HistoryState,
    ItemState,
)
from ray_multicluster_scheduler.simulation.checker.property import Entry, HistoryIndex, StateProperty, is_new_attempt
from ray_multicluster_scheduler.simulation.history import AttemptBegan, AttemptEnded, NodesChanged

_ROUNDING = 1e-3
_TOLERANCE = 1e-6
_SLACK_S = 5.0


class ReservationsNeverExceedCapacity(StateProperty):
    """By the truth: what runs on a node fits it. By the dispatches: nothing is sent to a cluster whose nodes are fully
    reserved, nor where what was seen to run leaves no node for it."""

    name = "reservations_never_exceed_capacity"
    sentence = "Our items never take more of a node than it has, neither by what runs there nor by what is dispatched."

    def check_index(self, index: HistoryIndex) -> None:
        nodes: dict[tuple[str, str], Mapping[str, float]] = {}
        running: dict[tuple[str, int], AttemptBegan] = {}
        for entry in index.of_types(AttemptBegan, AttemptEnded, NodesChanged):
            line = entry.content
            if isinstance(line, NodesChanged):
                nodes = {key: total for key, total in nodes.items() if key[0] != line.cluster}
                nodes |= {(line.cluster, node): total for node, total in line.nodes.items()}
            elif isinstance(line, AttemptEnded):
                running.pop((line.task_id, line.attempt), None)
            else:
                running[line.task_id, line.attempt] = line
                for node in line.parts:
                    parts = [
                        one.parts[node] for one in running.values() if one.cluster == line.cluster and node in one.parts
                    ]
                    total = nodes.get((line.cluster, node))
                    self._compare(entry, f"{node} of {line.cluster}", _sum(parts), total)

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is not Persist or not is_new_attempt(entry.content, state):
            return
        step = entry.content.transition
        cluster, item = state.clusters.get(step.cluster or ""), state.items[step.task_id]
        if cluster is None or cluster.latest_snapshot is None:
            return
        if cluster.metadata.autoscaling or step.code == "SENT_AHEAD":
            return
        need, totals = item.task.placement, cluster.totals()
        taken = {name: amount + cluster.min_own_usage(name) for name, amount in need.items()}
        self._compare(entry, cluster.name, taken, _sum(totals.values()))
        if item.task.kind in ("task", "actor") and not any(self._has_room(cluster, node, need) for node in totals):
            self.report(entry, f"{step.task_id} is sent to {cluster.name}, and what runs there leaves no node for it")

    def _has_room(self, cluster: ClusterState, node: str, need: Mapping[str, float]) -> bool:
        seen = _sum(one.held_resources for one in cluster.live.values() if one.node == node)
        total = cluster.totals()[node]
        return all(amount + seen.get(name, 0.0) <= total.get(name, 0.0) + _ROUNDING for name, amount in need.items())

    def _compare(self, entry: Entry, where: str, taken: Mapping[str, float], total: Mapping[str, float] | None) -> None:
        for name, amount in taken.items():
            if total is not None and amount > total.get(name, 0.0) + _ROUNDING:
                self.report(entry, f"{amount:g} {name} of ours on {where}, which has {total.get(name, 0.0):g}")


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return reduce(plus, parts, {})


class RulesNeverBroken(StateProperty):
    """Checked whenever an item is placed, against the cluster's state just before."""

    name = "rules_never_broken"
    sentence = (
        "Nothing is dispatched against a rule: submission interval, serial mode, threshold, limits of clusters and "
        "owners, cordons, pauses, an item's own lists."
    )

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is not Persist or not is_new_attempt(entry.content, state):
            return
        step = entry.content.transition
        item, cluster = state.items[step.task_id], state.clusters.get(step.cluster or "")
        if cluster is None:
            self.report(entry, f"{step.task_id} is sent to {step.cluster}, which is not registered")
            return
        for sentence in (
            self._check_closed(item, cluster, state),
            self._check_limits(item, cluster),
            self._check_interval(entry.at, item, cluster, state),
            self._check_serial(cluster, state),
            None if step.code == "SENT_AHEAD" else self._check_threshold(item, cluster, state),
        ):
            if sentence is not None:
                self.report(entry, f"{step.task_id} is sent to {cluster.name}: {sentence}")

    def _check_closed(self, item: ItemState, cluster: ClusterState, state: HistoryState) -> str | None:
        if cluster.cordoned or cluster.paused:
            return "it is cordoned or paused"
        if not cluster.accepts(item):
            return "the item may not go there"
        if item.code == "HELD":
            return "the item is held"
        return None if state.owner_may_start(item) else f"{item.task.owner or 'its owner'} is paused or at a limit"

    def _check_limits(self, item: ItemState, cluster: ClusterState) -> str | None:
        live, metadata = cluster.live.values(), cluster.metadata
        if len(live) >= metadata.max_in_flight:
            return f"{len(live)} are there, and max_in_flight is {metadata.max_in_flight}"
        jobs = sum(one.task.kind == "job" for one in live)
        if item.task.kind == "job" and jobs >= metadata.max_running_jobs:
            return f"{jobs} jobs are there, and max_running_jobs is {metadata.max_running_jobs}"
        return None

    def _check_interval(self, at: float, item: ItemState, cluster: ClusterState, state: HistoryState) -> str | None:
        settings = state.settings
        if item.attempt > 0 or item.task.base_kind not in settings.submission_interval_kinds:
            return None
        since = at - cluster.last_submission
        if since < settings.submission_interval_s - _TOLERANCE:
            return f"{since:g} s after the last one; submission_interval_s is {settings.submission_interval_s:g}"
        return None

    def _check_serial(self, cluster: ClusterState, state: HistoryState) -> str | None:
        if state.settings.execution_mode != "serial":
            return None
        busy = [one.task.id for one in cluster.live.values() if not (one.task.runs_actors and one.started)]
        return f"{busy[0]} runs there, and execution_mode is serial" if busy else None

    def _check_threshold(self, item: ItemState, cluster: ClusterState, state: HistoryState) -> str | None:
        limits = state.settings.resource_threshold
        totals = cluster.totals()
        for name, limit in (("CPU", limits.cpu), ("memory", limits.memory), ("GPU", limits.gpu)):
            total = sum(one.get(name, 0.0) for one in totals.values())
            if limit >= 1 or not total or (name == "GPU" and not item.task.placement.get(name)):
                continue
            used = cluster.min_own_usage(name)
            if used / total > limit + _TOLERANCE:
                return f"{used:g} of {total:g} {name} is ours already, and the threshold is {limit:g}"
        return None


class QuotaNeverExceeded(StateProperty):
    """Checked whenever an item is placed. What runs may exceed a quota that was lowered since."""

    name = "quota_never_exceeded"
    sentence = (
        "No item starts that brings its pool above its quota and what it may borrow, or a cohort above its quotas."
    )

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is not Persist or not is_new_attempt(entry.content, state):
            return
        step = entry.content.transition
        exceeded = state.exceeded_quota(state.items[step.task_id], step.cluster or "")
        if exceeded:
            self.report(entry, f"{step.task_id} is sent to {step.cluster}: {exceeded}")


class Order(StateProperty):
    """Compares only items that placement cannot tell apart: an item that could not have gone was not overtaken.

    Among items of one owner, priority and shape: strictly first come. Among items of one shape: the higher priority,
    unless ageing decides otherwise; at one priority, an owner who holds nothing before one who holds something. Once
    nodes may be reserved, short items may backfill where others may not, so that only the first rule is checked.
    """

    name = "order"
    sentence = (
        "Of items that could go alike, the more urgent goes first, then the owner who holds less, then the older."
    )

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is not Persist or not is_new_attempt(entry.content, state):
            return
        item = state.items[entry.content.transition.task_id]
        shape = item.shape
        alike = [one for one in state.waiting.values() if one is not item and one.shape == shape]
        if not alike or item.code == "FREES_ROOM":  # it goes to its own room
            return
        self._check_first_come(entry, item, alike)
        if entry.content.transition.code != "SENT_AHEAD" and not state.may_hold_reservation(entry.at):
            others = [one for one in alike if state.may_start(one)]
            self._check_urgency(entry, item, others, state)
            self._check_share(entry, item, others, state)

    def _check_first_come(self, entry: Entry, item: ItemState, alike: list[ItemState]) -> None:
        for one in alike:
            same = one.task.owner == item.task.owner and one.priority == item.priority
            if same and one.number < item.number and one.resumes >= item.resumes:
                self.report(entry, f"{item.task.id} goes before {one.task.id}, which came first and waits for the same")
                return

    def _check_urgency(self, entry: Entry, item: ItemState, others: list[ItemState], state: HistoryState) -> None:
        ageing_s = state.settings.ageing_s
        level = [one for one in state.waiting.values() if one.priority == item.priority]
        oldest = min((one.task.submitted_at for one in (item, *level)), default=0.0)
        best = oldest - item.priority * ageing_s
        for one in others:
            if one.priority > item.priority and _urgency(one, ageing_s) < best:
                self.report(
                    entry,
                    f"{item.task.id} (priority {item.priority}) goes before {one.task.id} (priority {one.priority})",
                )
                return

    def _check_share(self, entry: Entry, item: ItemState, others: list[ItemState], state: HistoryState) -> None:
        if state.settings.order != "fair" or any(one.priority != item.priority for one in state.waiting.values()):
            return
        if not state.live_items_of(item.task.owner):
            return
        for one in others:
            if one.task.owner != item.task.owner and not state.live_items_of(one.task.owner):
                self.report(
                    entry,
                    f"{item.task.id} of {item.task.owner!r}, who holds something, goes before {one.task.id} of "
                    f"{one.task.owner!r}, who holds nothing",
                )
                return


class NoStarvation(StateProperty):
    """Checked for an item that waits for capacity behind no item of the same or a higher urgency, while there is no
    fault and no intervention.

    It may have to wait ``reserve_after_s``, and then until what runs has ended; twice that is allowed. After that, no
    later item of the same or a lower urgency may be sent to a cluster that could take it. Its waiting time restarts
    when an item rightfully goes before it: a more urgent one, or, with fair shares, one of another owner that is at
    least as large.
    """

    name = "no_starvation"
    sentence = "However wide it is, an item is not overtaken for ever by smaller ones that came later."

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[tuple[str, int], float] = {}
        self._ended: list[tuple[float, float]] = []
        """When attempts ended, and how long they ran."""
        self._first_since: dict[str, float] = {}
        self._reported: set[str] = set()

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        content = entry.content
        if type(content) is AttemptBegan:
            self._began[content.task_id, content.attempt] = entry.at
        elif type(content) is AttemptEnded:
            began = self._began.pop((content.task_id, content.attempt), entry.at)
            self._ended.append((entry.at, entry.at - began))
        elif type(content) is Persist and is_new_attempt(content, state) and len(state.waiting) > 1:
            cluster = state.clusters.get(content.transition.cluster or "")
            if cluster is not None:
                self._check_placement(entry, state.items[content.transition.task_id], cluster, state)

    def _check_placement(self, entry: Entry, item: ItemState, cluster: ClusterState, state: HistoryState) -> None:
        first = _first_in_line(state)
        self._first_since = {one.task.id: self._first_since.get(one.task.id, entry.at) for one in first}
        for one in first:
            if _may_precede(item, one, state) and _could_hold(cluster, one):
                self._first_since[one.task.id] = entry.at
            since = max(self._first_since[one.task.id], one.queued_at, one.code_since, state.undisturbed_since)
            waited = entry.at - since
            overtaken = one.number < item.number and one.priority >= item.priority and one is not item
            if waited <= state.settings.reserve_after_s + _SLACK_S or not overtaken:
                continue
            longest = self._longest_run(entry.at, since)
            if waited <= state.settings.reserve_after_s + 2 * longest + _SLACK_S or one.task.id in self._reported:
                continue
            if one.code == "NO_CAPACITY" and state.may_start(one) and _could_hold(cluster, one):
                self._reported.add(one.task.id)
                self.report(
                    entry,
                    f"{one.task.id} has been the first to wait for capacity for {waited:g} s, nothing runs for longer "
                    f"than {longest:g} s, and {item.task.id}, which came later, goes to {cluster.name}",
                )

    def _longest_run(self, at: float, since: float) -> float:
        """The longest run time of anything that runs, or ended since then."""
        running = [at - began for began in self._began.values()]
        return max([0.0, *running, *(took for ended, took in self._ended if ended >= since)])


def _first_in_line(state: HistoryState) -> list[ItemState]:
    """Items with none of the same or a higher priority before them, by rising priority."""
    first: list[ItemState] = []
    highest: float | None = None
    for one in sorted(state.waiting.values(), key=lambda one: one.number):
        if highest is None or one.priority > highest:
            first.append(one)
            highest = one.priority
    return first


def _may_precede(item: ItemState, one: ItemState, state: HistoryState) -> bool:
    ageing_s = state.settings.ageing_s
    if _urgency(item, ageing_s) < _urgency(one, ageing_s):
        return True
    if state.settings.order != "fair" or item.task.owner == one.task.owner:
        return False
    return all(item.task.placement.get(name, 0.0) >= amount for name, amount in one.task.placement.items())


def _urgency(item: ItemState, ageing_s: float) -> float:
    """Smaller is more urgent."""
    return item.task.submitted_at - item.priority * ageing_s


def _could_hold(cluster: ClusterState, item: ItemState) -> bool:
    """Would the cluster take the item if it were empty?"""
    return cluster.accepts(item) and not cluster.cordoned and not cluster.paused and _fits_empty_node(cluster, item)


def _fits_empty_node(cluster: ClusterState, item: ItemState) -> bool:
    need = item.task.placement
    totals = cluster.totals().values()
    return any(all(amount <= total.get(name, 0.0) for name, amount in need.items()) for total in totals)


class IdleFleetStartsAtOnce(StateProperty):
    """Checked where all clusters are known to be healthy, and one of them has been completely unused for a while."""

    name = "idle_fleet_starts_at_once"
    sentence = (
        "An item that fits a healthy, idle cluster of a healthy fleet is dispatched by the first pass that sees it."
    )

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def after_answer(self, entry: Entry, state: HistoryState) -> None:
        if not state.waiting or any(one.latest_snapshot is None for one in state.clusters.values()):
            return
        idle = [one for one in state.clusters.values() if not one.live and _is_idle(one, entry.at)]
        if not idle or not all(_is_healthy(one, entry.at, state) for one in state.clusters.values()):
            return
        if state.may_hold_reservation(entry.at):
            return
        for item in state.waiting.values():
            cluster = next((one for one in idle if _fits_idle(one, item, entry.at, state)), None)
            if cluster is not None and state.may_start(item) and item.task.id not in self._reported:
                self._reported.add(item.task.id)
                self.report(entry, f"{item.task.id} waits ({item.code}), and {cluster.name} is healthy and idle")


def _is_healthy(cluster: ClusterState, at: float, state: HistoryState) -> bool:
    settings = state.settings
    fresh = cluster.is_fresh(at, settings)
    linked = cluster.link != "down" and at - cluster.link_failed_at > settings.breaker_recovery_s
    problem = cluster.breaker_may_be_open or cluster.snapshot_failed or cluster.dead_since is not None
    answers = cluster.dashboard_ok and cluster.head_ok
    return fresh and linked and answers and not problem and not cluster.cordoned and not cluster.paused


def _is_idle(cluster: ClusterState, at: float) -> bool:
    """None of our items was there for a while, and no snapshot showed anything in use."""
    used = (amount for node in cluster.max_usage(at).values() for amount in node.values())
    return not cluster.live and at - cluster.last_used_at > WINDOW_S and all(amount < _ROUNDING for amount in used)


def _fits_idle(cluster: ClusterState, item: ItemState, at: float, state: HistoryState) -> bool:
    """May the item go to this idle cluster now?"""
    if item.task.gang is not None or not cluster.accepts(item):
        return False
    if cluster.may_be_spaced(at, state.settings):
        return False
    return not state.exceeded_quota(item, cluster.name, claims=True) and _fits_empty_node(cluster, item)

"""A slow, simple evaluator of the placement rules, against which the decisions of the real policies are checked.

It shares no code with the policies that it checks: it reads the frozen views of the clusters, the item and the
settings, and applies filters, ranks, scores, and round robin among equals. Not covered: clusters without a snapshot (an
item may wait for it), gangs, reservations for wide items, and policies that users add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView

_ROUNDING = 0.00005  # half of the fourth decimal, the last one that Ray keeps
_GIB = 1024**3


@dataclass(frozen=True)
class Row:
    """One cluster: the codes of its rejections, or its ranks and scores."""

    cluster: str
    codes: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    scores: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Answer:
    """The chosen cluster (None: none now), and the row of each cluster."""

    winner: str | None
    rows: tuple[Row, ...]


def evaluate(
    task: TaskDescription,
    views: Sequence[ClusterView],
    settings: Settings,
    last_placed: Mapping[str, int],
    *,
    local_python: str = "3.11",
    retry: bool = False,
) -> Answer:
    """Evaluate all rules. ``last_placed`` numbers the placements so far:

    among near-equal clusters, the least recent one is next.
    """
    rows = tuple(_row(task, view, settings, local_python, retry=retry) for view in views)
    feasible = [row for row in rows if not row.codes]
    if not feasible:
        return Answer(None, rows)
    best = max(feasible, key=lambda row: _key(row, settings))
    equals = [row.cluster for row in feasible if _near_equal(row, best, settings)]
    return Answer(min(equals, key=lambda name: last_placed.get(name, 0)), rows)


def differences(decision: SchedulingDecision, answer: Answer) -> list[str]:
    """How a decision and its table differ from the naive ones, as sentences; empty if they agree."""
    found = []
    if decision.cluster != answer.winner:
        found.append(f"placed on {decision.cluster}, naively {answer.winner}")
    table = {row.cluster: row for row in decision.candidates}
    if sorted(table) != sorted(row.cluster for row in answer.rows):
        return [*found, f"its table has {sorted(table)}, naively {[row.cluster for row in answer.rows]}"]
    for row in answer.rows:
        codes = tuple(sorted(one.code for one in table[row.cluster].rejections))
        if codes != row.codes:
            found.append(f"{row.cluster}: rejected for {codes or 'no reason'}, naively for {row.codes or 'no reason'}")
        elif not _same(table[row.cluster].scores, row.scores or {}):
            found.append(f"{row.cluster}: scores {dict(table[row.cluster].scores)}, naively {dict(row.scores or {})}")
    return found


def _row(task: TaskDescription, view: ClusterView, settings: Settings, local_python: str, *, retry: bool) -> Row:
    codes = _of_the_item(task, view) + _of_the_cluster(task, view, local_python) + _of_room(task, view, settings)
    codes += _of_traffic(task, view, settings, retry=retry)
    if codes:
        return Row(view.name, tuple(sorted(codes)))
    ranks = (
        int(view.name == task.preferred_cluster),
        sum(1 for tag in set(task.tags) if tag in view.metadata.tags),
        int(not _needs_a_new_node(task, view)),
        int(bool(task.placement.get("GPU")) or not _free(view, "GPU") > 0),
    )
    known = {"load": _load, "headroom": _headroom}
    scores = {name: known[name](task, view) for name, weight in settings.weights.items() if weight > 0}
    return Row(view.name, (), ranks, scores)


def _of_the_item(task: TaskDescription, view: ClusterView) -> list[str]:
    codes = []
    if task.fallback == "wait" and task.preferred_cluster is not None and task.preferred_cluster != view.name:
        codes.append("PREFERRED_ONLY")
    allowed = task.allow_clusters is None or view.name in task.allow_clusters
    if view.name in task.deny_clusters or not allowed:
        codes.append("NOT_ALLOWED")
    if not set(task.require_tags) <= set(view.metadata.tags):
        codes.append("REQUIRED_TAGS")
    return codes


def _of_the_cluster(task: TaskDescription, view: ClusterView, local_python: str) -> list[str]:
    codes = []
    if view.metadata.dashboard is None or (task.kind != "job" and view.metadata.carrier == "ray_client"):
        codes.append("NO_CARRIER")
    if view.problem is not None:
        codes.append(view.problem.code)
    way = view.job_problem if task.kind == "job" else view.link_problem
    if way is not None:
        codes.append(way.code)
    if task.kind != "job" and view.python_version is not None:
        there, here = view.python_version.split("."), local_python.split(".")
        if there[:2] != here[:2]:
            codes.append("PYTHON_MISMATCH")
    if view.cordoned:
        codes.append("CORDONED")
    if view.paused is not None:
        codes.append("QUEUE_PAUSED")
    return codes


def _of_room(task: TaskDescription, view: ClusterView, settings: Settings) -> list[str]:
    if view.snapshot_at is None:
        return []
    codes = []
    if task.placement and view.nodes and not _may_ever_fit(task.placement, view, together=task.kind == "job"):
        codes.append("TOO_BIG")
    every_node_tells = all(node.free is not None for node in view.nodes)
    if not _fits_now(task, view) and not (every_node_tells and _fits_a_new_node(task, view)):
        codes.append("NO_CAPACITY" if every_node_tells else "CAPACITY_UNKNOWN")
    if _needs_a_new_node(task, view):
        return codes  # it does not add to the use of existing nodes
    return codes + _of_threshold(task, view, settings)


def _fits_now(task: TaskDescription, view: ClusterView) -> bool:
    """Does it fit one node? A job may use all nodes together, because Ray places its own tasks."""
    free = [node.free for node in view.nodes if node.free is not None]
    need = task.placement
    return not need or any(_fits(need, one) for one in free) or (task.kind == "job" and _fits(need, _sum(free)))


def _fits_a_new_node(task: TaskDescription, view: ClusterView) -> bool:
    """Does it fit the one node that may be starting? A job that needs several new nodes must be alone."""
    new = view.new_node
    if new is None:
        return False
    if new.size is None:
        return not new.reserved
    left = {name: amount - new.reserved.get(name, 0.0) for name, amount in new.size.items()}
    if _fits(task.placement, left):
        return True
    return task.kind == "job" and not new.reserved and all(new.size.get(name) for name in task.placement)


def _needs_a_new_node(task: TaskDescription, view: ClusterView) -> bool:
    return view.new_node is not None and not _fits_now(task, view)


def _may_ever_fit(need: Mapping[str, float], view: ClusterView, *, together: bool) -> bool:
    sizes = [node.total for node in view.nodes]
    possible = [*sizes, *view.past_node_sizes, *([_sum(sizes)] if together else [])]
    if view.metadata.max_node is None:
        return view.metadata.autoscaling or any(_fits(need, size) for size in possible)
    if together and view.metadata.autoscaling and all(view.metadata.max_node.get(name) for name in need):
        return True
    return any(_fits(need, size) for size in [*possible, view.metadata.max_node])


def _of_threshold(task: TaskDescription, view: ClusterView, settings: Settings) -> list[str]:
    limits = settings.resource_threshold
    for name, observed_as, limit in (
        ("CPU", "cpu", limits.cpu),
        ("GPU", "gpu", limits.gpu),
        ("memory", "memory", limits.memory),
    ):
        if limit >= 1 or _total(view, name) <= 0 or (name == "GPU" and not task.placement.get("GPU")):
            continue
        reserved, observed = _use(view, name), (view.observed or {}).get(observed_as)
        figures = {"reserved": [reserved], "observed": [observed], "max": [reserved, observed]}[settings.threshold_on]
        known = [one for one in figures if one is not None]
        use = max(known) if known else reserved
        if use is None:
            return ["CAPACITY_UNKNOWN"]
        if use > limit + 1e-9:
            return ["ABOVE_THRESHOLD"]
    return []


def _of_traffic(task: TaskDescription, view: ClusterView, settings: Settings, *, retry: bool) -> list[str]:
    codes = []
    if settings.execution_mode == "serial" and view.in_flight - view.ready_actors > 0:
        codes.append("SERIAL")
    next_at = view.next_submission_at
    if not retry and task.kind in settings.submission_interval_kinds and next_at is not None and view.at < next_at:
        codes.append("SUBMISSION_INTERVAL")
    if task.kind == "job" and view.running_jobs >= view.metadata.max_running_jobs:
        codes.append("MAX_RUNNING_JOBS")
    if view.in_flight + view.prefetched >= view.metadata.max_in_flight:
        codes.append("MAX_IN_FLIGHT")
    return codes


def _load(task: TaskDescription, view: ClusterView) -> float:
    weight = view.metadata.weight
    raw = _free(view, "CPU") * weight + 0.1 * _free(view, "memory") / _GIB * weight
    if task.placement.get("GPU"):
        raw += 5 * _free(view, "GPU")
    raw *= (1.2 if view.metadata.prefer else 1) * (1 - (_use(view, "CPU") or 0))
    raw /= 1 + view.undeclared
    return raw / (1 + raw)


def _headroom(task: TaskDescription, view: ClusterView) -> float:
    shares = []
    for name, amount in (dict(task.placement) or {"CPU": 0.0}).items():
        total = _total(view, name) + (view.undeclared if name == "CPU" else 0)
        shares.append(min(1.0, max(0.0, (_free(view, name) - amount) / total)) if total > 0 else 0.0)
    return min(shares)


def _key(row: Row, settings: Settings) -> tuple[float, ...]:
    scores = row.scores or {}
    weighted = sum(settings.weights[name] * score for name, score in scores.items())
    last = list(scores.values()) if settings.combine == "chain" else [weighted]
    return (*row.ranks, *(round(one, 9) for one in last))


def _near_equal(row: Row, best: Row, settings: Settings) -> bool:
    """Are its ranks those of the best cluster, and its scores at most a little lower or higher?"""
    if _key(row, settings) == _key(best, settings):
        return True
    pairs = [((row.scores or {})[name], (best.scores or {})[name], name) for name in row.scores or {}]
    pairs += [(one / (1 - one), other / (1 - other), name) for one, other, name in pairs if name == "load"]
    return row.ranks == best.ranks and all(
        abs(one - other) <= max(1e-9, settings.near_equal_scores * max(abs(one), abs(other))) for one, other, _ in pairs
    )


def _same(left: Mapping[str, float], right: Mapping[str, float]) -> bool:
    return left.keys() == right.keys() and all(abs(left[name] - right[name]) < 1e-9 for name in right)


def _fits(need: Mapping[str, float], room: Mapping[str, float]) -> bool:
    return not any(amount > room.get(name, 0.0) + _ROUNDING for name, amount in need.items())


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(part.get(name, 0.0) for part in parts) for name in {name for part in parts for name in part}}


def _total(view: ClusterView, name: str) -> float:
    return sum(node.total.get(name, 0.0) for node in view.nodes)


def _free(view: ClusterView, name: str) -> float:
    return sum(node.free.get(name, 0.0) for node in view.nodes if node.free is not None)


def _use(view: ClusterView, name: str) -> float | None:
    """The share in use by all users, over the nodes that report it."""
    telling = [node for node in view.nodes if node.free is not None]
    total = sum(node.total.get(name, 0.0) for node in telling)
    return 1 - min(1.0, _free(view, name) / total) if total > 0 else None

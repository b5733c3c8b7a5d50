"""When a waiting item may start, from all that the machine knows: what it waits for, and how long such things take."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ray_multicluster_scheduler.common.model import CandidateReport, SchedulingDecision, TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.core import Core
from ray_multicluster_scheduler.scheduler.lifecycle.forecast import (
    Busy,
    Forecast,
    Node,
    left_of,
    until_there_is_room,
)
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.run_times import RunTime
from ray_multicluster_scheduler.scheduler.policy import reasons

MOST_LOOKED_AT = 2000
"""Items that run on one cluster; the ends of more of them say nothing more."""

_ROOM = frozenset({reasons.NO_CAPACITY, reasons.ABOVE_THRESHOLD})
_ENDS = frozenset({reasons.SERIAL, reasons.MAX_IN_FLIGHT, reasons.MAX_RUNNING_JOBS})
_PLACE = {"place": 1.0}


def outlook(
    core: Core, record: TaskRecord, position: int | None, decision: SchedulingDecision | None, now: float
) -> Forecast | None:
    """For one that waits, at this ``position`` in the queue and by this fresh ``decision``; None if it does not."""
    if record.state is TaskState.PENDING:
        return _before_the_queue(core, record, now)
    if record.state is TaskState.RETRYING:
        return Forecast(max(0.0, (core.out.due(timers.retry_key(record.task.id)) or now) - now))
    if record.state is not TaskState.QUEUED:
        return None
    if decision is None or position is None:
        return Forecast(why=record.sentence)
    if decision.cluster is not None:
        return Forecast(0.0, 0.0, 0.0)
    return _in_the_queue(core, record, position, decision, now)


def _before_the_queue(core: Core, record: TaskRecord, now: float) -> Forecast:
    missing = core.prerequisites.of(record.task.id)
    if missing is None or missing.arguments or missing.after or missing.begins_at is None:
        return Forecast(why=record.sentence if missing is None else missing.sentence)
    return Forecast(max(0.0, missing.begins_at - now))


def _in_the_queue(core: Core, record: TaskRecord, position: int, decision: SchedulingDecision, now: float) -> Forecast:
    """By what stands between it and the clusters that could take it, the most common reason first."""
    own = core.run_times.seen(record.task)
    for codes, need in ((_ROOM, record.wanted.placement), (_ENDS, _PLACE)):
        found = [core.registry.find(row.cluster) for row in decision.candidates if _only(row, codes)]
        clusters = [state for state in found if state is not None]
        if not clusters:
            continue
        if record.task.gang is not None:
            return Forecast(why="a gang needs room for all its members at once")
        whole = codes is _ENDS
        nodes = [node for state in clusters for node in _nodes(core, state, now, whole=whole)]
        return until_there_is_room(position, need, own, nodes).not_faster_than(core.pace.per_s(now), position)
    waits = [core.submissions.next_at(row.cluster) for row in decision.candidates if _only(row, _INTERVAL)]
    times = sorted(max(0.0, at - now) for at in waits if at is not None)
    if times:
        rounds, place = divmod(position - 1, len(times))
        return Forecast(times[place] + rounds * core.settings.submission_interval_s)
    return Forecast(why=decision.sentence)


_INTERVAL = frozenset({reasons.SUBMISSION_INTERVAL})


def _only(row: CandidateReport, codes: frozenset[str]) -> bool:
    """Is this all that keeps it from going there?"""
    return bool(row.rejections) and all(one.code in codes and not one.permanent for one in row.rejections)


def _nodes(core: Core, state: ClusterState, now: float, *, whole: bool) -> Iterable[Node]:
    """Its nodes with what of ours runs there; ``whole``: the cluster as one node with a place for each item."""
    running = list(islice(state.ledger.reservations.items(), MOST_LOOKED_AT))
    if whole:
        return [Node({}, tuple(Busy(_PLACE, _left(core, task_id, now)) for task_id, _ in running))]
    busy: dict[str, list[Busy]] = {}
    for task_id, reservation in running:
        for node_id, amounts in reservation.parts.items():
            busy.setdefault(node_id, []).append(Busy(amounts, _left(core, task_id, now)))
    return [Node(node.free or {}, tuple(busy.get(node.node_id, ()))) for node in state.ledger.nodes()]


def _left(core: Core, task_id: str, now: float) -> RunTime | None:
    record = core.records[task_id]
    return left_of(core.run_times.seen(record.task), max(0.0, now - (record.started_at or now)))

"""When a waiting item may start, from all that the machine knows: what it waits for, and how long such things take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ray_multicluster_scheduler.common.model import CandidateReport, SchedulingDecision, TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.forecast import (
    ClusterCapacity,
    NodeCapacity,
    RunningItem,
    StartEstimate,
    estimate_from_capacity,
    include_running,
    remaining_time,
)
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import RunTime, code_key
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.policy import reasons
from ray_multicluster_scheduler.scheduler.queue.backpressure_controller import BackpressureController

MOST_LOOKED_AT = 2000
"""Items that run on one cluster; the ends of more of them say nothing more."""

_ROOM = frozenset({reasons.NO_CAPACITY, reasons.ABOVE_THRESHOLD})
_ENDS = frozenset({reasons.SERIAL, reasons.MAX_IN_FLIGHT, reasons.MAX_RUNNING_JOBS})
_PLACE = {"place": 1.0}


def estimate_start(
    machine: MachineState, record: TaskRecord, position: int | None, decision: SchedulingDecision | None, now: float
) -> StartEstimate | None:
    """For one that waits, at this ``position`` in the queue and by this fresh ``decision``; None if it does not."""
    if record.state is TaskState.PENDING:
        return _before_the_queue(machine, record, now)
    if record.state is TaskState.RETRYING:
        return StartEstimate(max(0.0, (machine.output.due_at(timers.retry_key(record.task.id)) or now) - now))
    if record.state is not TaskState.QUEUED:
        return None
    if decision is None or position is None:
        return StartEstimate(why=record.sentence)
    if decision.cluster is not None:
        return StartEstimate(0.0, 0.0, 0.0)
    return _in_the_queue(machine, record, position, decision, now)


def _before_the_queue(machine: MachineState, record: TaskRecord, now: float) -> StartEstimate:
    missing = machine.prerequisites.of(record.task.id)
    if missing is None or missing.arguments or missing.after or missing.begins_at is None:
        return StartEstimate(why=record.sentence if missing is None else missing.sentence)
    return StartEstimate(max(0.0, missing.begins_at - now))


def _in_the_queue(
    machine: MachineState, record: TaskRecord, position: int, decision: SchedulingDecision, now: float
) -> StartEstimate:
    """By what stands between it and the clusters that could take it, the most common reason first."""
    own = _own(machine, record, now)
    for codes, need in ((_ROOM, record.wanted.placement), (_ENDS, _PLACE)):
        rows = [row for row in decision.candidates if _only(row, codes)]
        clusters = [state for row in rows if (state := machine.registry.find(row.cluster)) is not None]
        if not clusters:
            continue
        if record.task.gang is not None:
            return StartEstimate(why="a gang needs room for all its members at once")
        if codes is _ENDS:
            rooms = [ClusterCapacity([_places(machine, state, now)]) for state in clusters]
        else:
            above = {row.cluster for row in rows if any(one.code == reasons.ABOVE_THRESHOLD for one in row.rejections)}
            rooms = list(_rooms(machine, record, clusters, above, now))
        if not rooms:
            return StartEstimate(why="nobody can tell when the use that is observed falls to the threshold")
        return estimate_from_capacity(position, need, own, rooms).limited_by_rate(
            machine.completion_rate.per_s(now), position
        )
    waits = [machine.submissions.next_at(row.cluster) for row in decision.candidates if _only(row, _INTERVAL)]
    times = sorted(max(0.0, at - now) for at in waits if at is not None)
    if times:
        rounds, place = divmod(position - 1, len(times))
        return StartEstimate(times[place] + rounds * machine.settings.submission_interval_s)
    return StartEstimate(why=decision.sentence)


_INTERVAL = frozenset({reasons.SUBMISSION_INTERVAL})


def _only(row: CandidateReport, codes: frozenset[str]) -> bool:
    """Is this all that keeps it from going there?"""
    return bool(row.rejections) and all(one.code in codes and not one.permanent for one in row.rejections)


def _rooms(
    machine: MachineState, record: TaskRecord, clusters: Iterable[ClusterState], above: set[str], now: float
) -> Iterator[ClusterCapacity]:
    """Those of which one can tell when they take more; ``above``: of which too much is in use now."""
    pressure = BackpressureController(machine.settings)
    for state in clusters:
        views, newest = state.ledger.nodes(), state.ledger.latest_snapshot
        spare = pressure.headroom(record.wanted, views, None if newest is None else newest.observed)
        if spare is None:
            continue
        busy: dict[str, list[RunningItem]] = {}
        for task_id, reservation in islice(state.ledger.reservations.items(), MOST_LOOKED_AT):
            for node_id, amounts in reservation.parts.items():
                busy.setdefault(node_id, []).append(RunningItem(amounts, _left(machine, task_id, now)))
        nodes = [NodeCapacity(one.free or {}, tuple(busy.get(one.node_id, ()))) for one in views]
        yield ClusterCapacity(nodes, spare, full=state.name in above)


def _places(machine: MachineState, state: ClusterState, now: float) -> NodeCapacity:
    """The cluster as one node with a place for each item."""
    running = islice(state.ledger.reservations, MOST_LOOKED_AT)
    return NodeCapacity({}, tuple(RunningItem(_PLACE, _left(machine, task_id, now)) for task_id in running))


def _own(machine: MachineState, record: TaskRecord, now: float) -> RunTime | None:
    """How long such items run, by those that ended and by those that have run for longer."""
    key, longest = code_key(record.task), 0.0
    for state in machine.registry if key is not None else ():
        for task_id in islice(state.ledger.reservations, MOST_LOOKED_AT):
            other = machine.records[task_id]
            if other.started_at is not None and code_key(other.task) == key:
                longest = max(longest, now - other.started_at)
    return include_running(machine.run_times.observed_range(record.task), longest)


def _left(machine: MachineState, task_id: str, now: float) -> RunTime | None:
    record = machine.records[task_id]
    return remaining_time(machine.run_times.observed_range(record.task), max(0.0, now - (record.started_at or now)))

"""Start estimates: when a waiting item may start, from the run times of what it waits for. An estimate, never a
promise.

Each cluster is simulated by itself: running items end one after the other and free their node, whose capacity is used
again while usage stays below the threshold. Items ahead in the queue are assumed to be like the item itself. This is
done with the shortest, the mean and the longest run times that were observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Any

from ray_multicluster_scheduler.common.model import CandidateReport, Resources, SchedulingDecision, TaskState
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import RunTime, code_key
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.policy import reasons
from ray_multicluster_scheduler.scheduler.queue.backpressure_controller import BackpressureController

MAX_SLOTS_PER_NODE = 1000
"""Limit per node: more slots would not improve the estimate."""

_NEGLIGIBLE_S = 0.05
"""Less than this would be written as 0 s."""


@dataclass(frozen=True, slots=True)
class RunningItem:
    """An item of ours on a node: what it holds, and its remaining time (None: unknown)."""

    holds: Resources
    remaining: RunTime | None


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Free resources of a node now, and later."""

    free: Resources
    running: tuple[RunningItem, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """The nodes of a cluster. ``headroom`` is how much more may be in use: no item is started while it is negative for
    a resource. ``full``: no item is started before another one has ended."""

    nodes: Sequence[NodeCapacity]
    headroom: Resources = field(default_factory=dict)
    full: bool = False


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """Seconds from now; None if unknown, with the reason in ``why``. With ``low`` alone only the earliest start is
    known."""

    low: float | None = None
    likely: float | None = None
    high: float | None = None
    why: str = ""

    def limited_by_rate(self, per_s: float | None, position: int) -> StartEstimate:
        """The estimate, corrected by the observed completion rate: more than run time limits the throughput."""
        if self.low is None or self.likely is None or self.high is None or per_s is None:
            return self
        turn = position / per_s
        return StartEstimate(max(self.low, turn / 2), max(self.likely, turn), max(self.high, turn * 2), self.why)

    @property
    def text(self) -> str:
        """The estimate as a phrase."""
        if self.low is None:
            return f"unknown: {self.why}" if self.why else "unknown"
        if self.likely is None or self.high is None:
            return f"not before {duration_text(self.low)} from now"
        if self.high == 0:
            return "at once"
        if self.high < _NEGLIGIBLE_S:
            return "in a moment"
        return f"in about {duration_text(self.likely)} (between {_numbers(self.low, self.high)})"

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "earliest_s": self.low, "likely_s": self.likely, "latest_s": self.high}


def remaining_time(seen: RunTime | None, ran: float) -> RunTime | None:
    """Remaining time of an item that has run for ``ran`` seconds.

    Beyond the mean it is likely to end halfway to the longest expected time. Beyond that it differs from what was
    observed: it is expected to run half as long again.
    """
    if seen is None:
        return None
    if ran >= seen.high:
        return RunTime(0.0, ran / 2, ran)
    likely = seen.likely - ran if ran < seen.likely else (seen.high - ran) / 2
    return RunTime(max(0.0, seen.low - ran), likely, seen.high - ran)


def include_running(seen: RunTime | None, longest: float) -> RunTime | None:
    """The run times, extended by an item that has run for ``longest`` seconds so far."""
    if seen is None or longest <= seen.high:
        return seen
    left = remaining_time(seen, longest)
    assert left is not None
    return RunTime(seen.low, longest + left.likely, longest + left.high)


def estimate_from_capacity(
    position: int, need: Resources, own: RunTime | None, capacities: Sequence[ClusterCapacity]
) -> StartEstimate:
    """For the item at this ``position`` in the queue (1: the next) that needs ``need`` on one node.

    ``own`` is the run time of such items.
    """
    if not need:
        return StartEstimate(why="it requests no resources, so it does not wait for capacity")
    if not any(one.remaining for capacity in capacities for node in capacity.nodes for one in node.running):
        return StartEstimate(why="the run time of what it waits for is unknown")
    times = [_start(position, need, own, capacities, which) for which in range(3)]
    if any(time is None for time in times):
        return StartEstimate(why=_too_little(position, need, capacities))
    low, likely, high = sorted(time for time in times if time is not None)
    return StartEstimate(low, likely, high)


def _start(
    position: int, need: Resources, own: RunTime | None, capacities: Iterable[ClusterCapacity], which: int
) -> float | None:
    """Each slot is used by the next item in the queue, and is free again when that one has ended."""
    openings = sorted(at for capacity in capacities for at in _openings(capacity, need, which, position))
    if not openings:
        return None
    rounds, place = divmod(position - 1, len(openings))
    if rounds and own is None:
        return None
    return openings[place] + (rounds * own[which] if own is not None else 0.0)


def _openings(capacity: ClusterCapacity, need: Resources, which: int, most: int) -> list[float]:
    """The times of the first ``most`` starts there, each without ending the earlier ones."""
    every = range(len(capacity.nodes))
    most = min(most, MAX_SLOTS_PER_NODE * len(every))
    free, spare = [dict(node.free) for node in capacity.nodes], capacity.headroom
    steps: list[tuple[float, int, Resources]] = [] if capacity.full else [(0.0, at, {}) for at in every]
    ends = ((one, at) for at in every for one in capacity.nodes[at].running)
    steps += sorted(
        ((one.remaining[which], at, one.holds) for one, at in ends if one.remaining is not None), key=itemgetter(0)
    )
    roomy = list(every) if capacity.full else []  # nodes that may have room for one more
    openings: list[float] = []
    for when, at, holds in steps:
        free[at], spare = plus(free[at], holds), _changed(spare, holds, 1)
        roomy.append(at)
        while roomy and len(openings) < most and all(amount >= 0 for amount in spare.values()):
            if fits(need, free[roomy[-1]]):
                openings.append(when)
                free[roomy[-1]], spare = minus(free[roomy[-1]], need), _changed(spare, need, -1)
            else:
                roomy.pop()
    return openings


def _changed(spare: Resources, by: Resources, sign: int) -> dict[str, float]:
    return {name: amount + sign * by.get(name, 0.0) for name, amount in spare.items()}


def _too_little(position: int, need: Resources, capacities: Sequence[ClusterCapacity]) -> str:
    if any(_openings(capacity, need, 1, 1) for capacity in capacities):
        return f"{position - 1} are ahead of it, and the run time of such items is unknown"
    if any(_openings(replace(capacity, headroom={}), need, 1, 1) for capacity in capacities):
        return "the attempts of known run time do not bring use down to the threshold"
    return "the attempts of known run time do not free enough for it"


def duration_text(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``."""
    number, unit = _in_units(seconds)
    return f"{number} {unit}"


def _numbers(low: float, high: float) -> str:
    (first, unit), (second, other) = _in_units(low), _in_units(high)
    return f"{first} and {second} {other}" if unit == other else f"{first} {unit} and {second} {other}"


def _in_units(seconds: float) -> tuple[str, str]:
    if seconds < 10:
        return f"{round(seconds, 1):g}", "s"
    if seconds < 120:
        return f"{seconds:.0f}", "s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}", "min"
    return f"{seconds / 3600:.0f}", "h"


MAX_RUNNING = 2000
"""Limit of running items per cluster: more would not improve the estimate."""

_ROOM = frozenset({reasons.NO_CAPACITY, reasons.ABOVE_THRESHOLD})
_ENDS = frozenset({reasons.SERIAL, reasons.MAX_IN_FLIGHT, reasons.MAX_RUNNING_JOBS})
_PLACE = {"place": 1.0}


def estimate_start(
    machine: MachineState, record: TaskRecord, position: int | None, decision: SchedulingDecision | None, now: float
) -> StartEstimate | None:
    """For an item that waits, at this ``position`` in the queue and with this current ``decision``; None if it does not
    wait."""
    if record.state is TaskState.PENDING:
        return _before_the_queue(machine, record, now)
    if record.state is TaskState.RETRYING:
        return StartEstimate(max(0.0, (machine.output.timers.get(timers.retry_key(record.task.id)) or now) - now))
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
    """By what blocks it on the clusters that could run it, the most common reason first."""
    own = _own(machine, record, now)
    for codes, need in ((_ROOM, record.wanted.placement), (_ENDS, _PLACE)):
        rows = [row for row in decision.candidates if _rejected_only_by(row, codes)]
        clusters = [state for row in rows if (state := machine.registry.find(row.cluster)) is not None]
        if not clusters:
            continue
        if record.task.gang is not None:
            return StartEstimate(why="a gang needs room for all its members at once")
        if codes is _ENDS:
            capacities = [ClusterCapacity([_places(machine, state, now)]) for state in clusters]
        else:
            above = {row.cluster for row in rows if any(one.code == reasons.ABOVE_THRESHOLD for one in row.rejections)}
            capacities = list(_predictable_capacities(machine, record, clusters, above, now))
        if not capacities:
            return StartEstimate(why="it is unknown when the observed use falls to the threshold")
        return estimate_from_capacity(position, need, own, capacities).limited_by_rate(
            machine.completion_rate.per_s(now), position
        )
    waits = [
        machine.submissions.next_at(row.cluster) for row in decision.candidates if _rejected_only_by(row, _INTERVAL)
    ]
    times = sorted(max(0.0, at - now) for at in waits if at is not None)
    if times:
        rounds, place = divmod(position - 1, len(times))
        return StartEstimate(times[place] + rounds * machine.settings.submission_interval_s)
    return StartEstimate(why=decision.sentence)


_INTERVAL = frozenset({reasons.SUBMISSION_INTERVAL})


def _rejected_only_by(row: CandidateReport, codes: frozenset[str]) -> bool:
    """Do only these codes keep it from this cluster, none of them permanently?"""
    return bool(row.rejections) and all(one.code in codes and not one.permanent for one in row.rejections)


def _predictable_capacities(
    machine: MachineState, record: TaskRecord, clusters: Iterable[ClusterState], above: set[str], now: float
) -> Iterator[ClusterCapacity]:
    """Clusters with a predictable capacity; ``above``: those above the threshold now."""
    pressure = BackpressureController(machine.settings)
    for state in clusters:
        views, newest = state.ledger.nodes(), state.ledger.latest_snapshot
        spare = pressure.headroom(record.wanted, views, None if newest is None else newest.observed)
        if spare is None:
            continue
        busy: dict[str, list[RunningItem]] = {}
        for task_id, reservation in islice(state.ledger.reservations.items(), MAX_RUNNING):
            for node_id, amounts in reservation.parts.items():
                busy.setdefault(node_id, []).append(RunningItem(amounts, _left(machine, task_id, now)))
        nodes = [NodeCapacity(one.free or {}, tuple(busy.get(one.node_id, ()))) for one in views]
        yield ClusterCapacity(nodes, spare, full=state.name in above)


def _places(machine: MachineState, state: ClusterState, now: float) -> NodeCapacity:
    """The cluster as one node with a slot per item."""
    running = islice(state.ledger.reservations, MAX_RUNNING)
    return NodeCapacity({}, tuple(RunningItem(_PLACE, _left(machine, task_id, now)) for task_id in running))


def _own(machine: MachineState, record: TaskRecord, now: float) -> RunTime | None:
    """Run time of such items, from those that ended and those that have run for longer."""
    key, longest = code_key(record.task), 0.0
    for state in machine.registry if key is not None else ():
        for task_id in islice(state.ledger.reservations, MAX_RUNNING):
            other = machine.records[task_id]
            if other.started_at is not None and code_key(other.task) == key:
                longest = max(longest, now - other.started_at)
    return include_running(machine.run_times.observed_range(record.task), longest)


def _left(machine: MachineState, task_id: str, now: float) -> RunTime | None:
    record = machine.records[task_id]
    return remaining_time(machine.run_times.observed_range(record.task), max(0.0, now - (record.started_at or now)))

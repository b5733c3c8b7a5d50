"""Looks: what a machine says of itself between two events, as a line of the history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.resources import plus
from ray_multicluster_scheduler.scheduler.lifecycle.events import Restored
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.simulation.history import StateDump


def look(machine: SchedulerMachine, now: float, unequal: tuple[str, ...] = ()) -> StateDump:
    """Ask why each waiting item waits, which breakers are open, and what is left once nothing is unfinished."""
    waiting = {}
    for record in machine.records():
        if record.state.terminal:
            continue
        decision = machine.why(record.task.id, now)
        missing = machine.missing(record.task.id)
        if decision is not None:
            waiting[record.task.id] = decision.code, decision.sentence
        elif missing is not None:
            waiting[record.task.id] = missing.code, missing.sentence
    return StateDump(now, waiting, _open_breakers(machine, now), _left(machine), unequal)


def _open_breakers(machine: SchedulerMachine, now: float) -> tuple[str, ...]:
    return tuple(one.name for one in machine.registry if one.breaker.state(now) is not BreakerState.CLOSED)


def _left(machine: SchedulerMachine) -> tuple[str, ...]:
    """What it still holds although every item is over."""
    if machine.has_unfinished():
        return ()
    left = [f"timer {key}" for key in sorted(machine.timers)]
    left += [f"{depth} waiting in {lane}" for lane, depth in machine.queue_depths().items()]
    for metadata in machine.registry.list():
        state = machine.registry.state(metadata.name)
        left += [f"reservation of {task_id} on {state.name}" for task_id in state.ledger.reservations]
        left += [f"{task_id} counted on {state.name}" for task_id in (*state.places.held, *state.places.ahead)]
        left += [f"{node.ours} of ours on {node.node_id}" for node in state.ledger.nodes() if node.ours]
        left += [f"room kept on {state.name} for {state.pin.task_id}"] if state.pin is not None else []
    return tuple(left)


def differences(
    live: SchedulerMachine, rows: Mapping[str, ItemRow], fresh: Callable[[], SchedulerMachine], now: float
) -> tuple[str, ...]:
    """How one that is rebuilt from these rows differs from the live one, less soft state; in words."""
    names = live.registry.names()
    found = [
        f"the row of {record.task.id} is not what it is"
        for record in live.records()
        if record.task.id not in rows
        or _lasting(rows[record.task.id], names) != _lasting(live.row(record.task.id), names)
    ]
    people = live.cluster_rows(), live.owner_rows()
    rebuilt = fresh()
    rebuilt.handle(Restored(tuple(rows.values()), *people, live.next_fence), now)
    found += [
        f"{task_id} is not what its row is"
        for task_id, row in rows.items()
        if _lasting(rebuilt.row(task_id), names) != _lasting(row, names)
    ]
    if (rebuilt.cluster_rows(), rebuilt.owner_rows()) != people:
        found.append("clusters or owners are not as people left them")
    return tuple(found)


def _lasting(row: ItemRow, clusters: Collection[str]) -> ItemRow:
    """Without why it waits, which is found out again; without its room on a cluster that was removed or is full;
    and where it is expected, before it was seen to begin, is a guess that may change."""
    steps = tuple(step for step in row.history if step.state is not TaskState.QUEUED)
    lasting = replace(row, history=steps, decision=None)
    if row.cluster not in clusters:
        return replace(lasting, parts={}, place="none")
    if not row.parts:
        return replace(lasting, parts={})
    if row.started_at is None and row.parts:
        amounts: dict[str, float] = {}
        for part in row.parts.values():
            amounts = plus(amounts, part)
        return replace(lasting, parts={"somewhere": amounts})
    return lasting

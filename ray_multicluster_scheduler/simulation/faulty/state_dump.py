"""Dump the state of a machine between two events, and compare it with one rebuilt from the durable rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import reduce

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.model.resources import plus
from ray_multicluster_scheduler.scheduler.lifecycle.events import Restored
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from ray_multicluster_scheduler.simulation.history import StateDump


def dump_state(machine: SchedulerMachine, now: float, unequal: tuple[str, ...] = ()) -> StateDump:
    """The reason of each waiting item, the open breakers, and what is still held once all items have ended."""
    waiting = {}
    for record in machine.records():
        if record.state.terminal:
            continue
        reason = machine.explain_wait(record.task.id, now) or machine.unmet_prerequisites(record.task.id)
        if reason is not None:
            waiting[record.task.id] = reason.code, reason.sentence
    breakers = tuple(one.name for one in machine.registry if one.breaker.state(now) is not BreakerState.CLOSED)
    return StateDump(now, waiting, breakers, _leftovers(machine), unequal)


def _leftovers(machine: SchedulerMachine) -> tuple[str, ...]:
    """State that the machine still holds although every item has ended."""
    if machine.has_unfinished():
        return ()
    left = [f"timer {key}" for key in sorted(machine.timers)]
    left += [f"{depth} waiting in {lane}" for lane, depth in machine.queue_depths().items()]
    for metadata in machine.registry.list():
        state = machine.registry.state(metadata.name)
        left += [f"reservation of {task_id} on {state.name}" for task_id in state.ledger.reservations]
        left += [f"{task_id} counted on {state.name}" for task_id in (*state.slots.held, *state.slots.prefetched)]
        left += [f"{node.reserved} of ours on {node.node_id}" for node in state.ledger.nodes() if node.reserved]
        left += (
            [f"room kept on {state.name} for {state.wide_reservation.task_id}"]
            if state.wide_reservation is not None
            else []
        )
    return tuple(left)


def rebuild_differences(
    live: SchedulerMachine, rows: Mapping[str, ItemRow], make: Callable[[], SchedulerMachine], now: float
) -> tuple[str, ...]:
    """Differences between a machine restored from these rows and the live one, ignoring soft state."""
    names = live.registry.names()
    found = [
        f"the row of {record.task.id} is not up to date"
        for record in live.records()
        if record.task.id not in rows
        or _durable_part(rows[record.task.id], names) != _durable_part(live.row(record.task.id), names)
    ]
    fleet_rows = live.cluster_rows(), live.owner_rows(), live.pool_rows()
    rebuilt = make()
    rebuilt.handle(Restored(tuple(rows.values()), *fleet_rows, live.next_fence), now)
    found += [
        f"{task_id} differs from its row"
        for task_id, row in rows.items()
        if _durable_part(rebuilt.row(task_id), names) != _durable_part(row, names)
    ]
    if (rebuilt.cluster_rows(), rebuilt.owner_rows(), rebuilt.pool_rows()) != fleet_rows:
        found.append("the operators' settings of clusters or owners differ")
    return tuple(found)


def _durable_part(row: ItemRow, clusters: Collection[str]) -> ItemRow:
    """The row without soft state.

    That is: why it waits, its resources on a cluster that was removed or is full, and the node that it is expected on
    before it was seen to start.
    """
    steps = tuple(step for step in row.history if step.state is not TaskState.QUEUED)
    durable = replace(row, history=steps, decision=None)
    if row.cluster not in clusters:
        return replace(durable, parts={}, place="none")
    if not row.parts:
        return replace(durable, parts={})
    if row.started_at is None:
        return replace(durable, parts={"any node": reduce(plus, row.parts.values(), {})})
    return durable

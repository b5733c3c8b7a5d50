"""QueuePlace: how many are before an item, and why. For people who ask; nothing is decided by it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup
from ray_multicluster_scheduler.scheduler.queue.task_queue import TaskQueue

MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """``position`` 1 is next, if whatever is free suited everybody alike. ``ahead`` are the first of those before it,
    each with why it is."""

    position: int
    ahead: tuple[tuple[str, str], ...]


def queue_place(queue: TaskQueue, task_id: str, now: float) -> QueuePlace | None:
    """Where it stands; None if it does not wait there."""
    group = queue.group_of(task_id)
    if group is None:
        return None
    mine = next(entry for entry in group.entries() if entry.task_id == task_id)
    urgency = queue.order.urgency(group.priority, mine.since)
    before: list[tuple[tuple[float, ...], str, str]] = []
    others: dict[str, list[tuple[int, str]]] = {}
    own = 0
    for other in queue.groups():
        for entry in other.entries():
            if other.priority != group.priority:
                its = queue.order.urgency(other.priority, entry.since)
                if its < urgency:
                    before.append(((0, its), entry.task_id, _why_urgent(other, group)))
            elif other.shape.owner == group.shape.owner:
                if entry.number < mine.number:
                    own += 1
                    before.append(((1, entry.number), entry.task_id, "came earlier"))
            else:
                others.setdefault(other.shape.owner, []).append((entry.number, entry.task_id))
    before += _by_turns(queue, group, others, own, mine.number, now)
    first = heapq.nsmallest(MOST_NAMED, before)
    return QueuePlace(1 + len(before), tuple((one, why) for _, one, why in first))


def _by_turns(
    queue: TaskQueue, group: ShapeGroup, others: dict[str, list[tuple[int, str]]], own: int, number: int, now: float
) -> Iterator[tuple[tuple[float, ...], str, str]]:
    """Of every other owner as many as have their turn while those before it of its own have theirs."""
    turn = queue.order.turn(queue.account(group.shape.owner), now)
    for owner, entries in others.items():
        its = queue.order.turn(queue.account(owner), now)
        if not turn:  # owners do not count
            yield from (((1, one), task_id, "came earlier") for one, task_id in entries if one < number)
            continue
        turns = own + (its < turn)
        why = f"it is the turn of {owner or 'another owner'}, who holds less" if its < turn else f"{owner} takes turns"
        yield from (((1, one), task_id, why) for one, task_id in heapq.nsmallest(turns, entries))


def _why_urgent(other: ShapeGroup, mine: ShapeGroup) -> str:
    if other.priority > mine.priority:
        return f"has priority {other.priority}"
    return f"has waited so long that it counts for more than priority {mine.priority}"

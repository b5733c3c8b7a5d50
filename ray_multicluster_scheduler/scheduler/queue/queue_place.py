"""QueuePlace: how many are before an item, and why. For people who ask; nothing is decided by it."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

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


def queue_positions(queue: TaskQueue, task_ids: Iterable[str], now: float) -> dict[str, int]:
    """The position of each that waits there, as :func:`queue_place` tells it; for many at once. The queue is gone
    through once, however many are asked for."""
    asked = {one: group for one in task_ids if (group := queue.group_of(one)) is not None}
    if not asked:
        return {}
    numbers, ages = _sorted_numbers(queue), _sorted_ages(queue)
    turns = {owner: queue.order.turn(queue.account(owner), now) for level in numbers.values() for owner in level}
    since = {one: at for group in set(asked.values()) for one, at in group.sinces_of(asked).items()}
    positions: dict[str, int] = {}
    for task_id, group in asked.items():
        level, owner, number = group.priority, group.shape.owner, group.number_of(task_id)
        before = own = bisect_left(numbers[level][owner], number)
        for other, theirs in numbers[level].items():
            if other == owner:
                continue
            if turns[owner]:
                before += min(len(theirs), own + (turns[other] < turns[owner]))
            else:  # owners do not count
                before += bisect_left(theirs, number)
        urgency = queue.order.urgency(level, since[task_id])
        before += sum(_more_urgent(queue, one, some, urgency) for one, some in ages.items() if one != level)
        positions[task_id] = 1 + before
    return positions


def _sorted_numbers(queue: TaskQueue) -> dict[int, dict[str, list[int]]]:
    """Of those that wait: by priority and owner, in the order in which they came."""
    parts: dict[int, dict[str, list[Iterable[int]]]] = {}
    for group in queue.groups():
        parts.setdefault(group.priority, {}).setdefault(group.shape.owner, []).append(group.numbers())
    return {
        priority: {owner: sorted(chain.from_iterable(some)) for owner, some in level.items()}
        for priority, level in parts.items()
    }


def _sorted_ages(queue: TaskQueue) -> dict[int, list[float]]:
    """When they were submitted, by priority, the oldest first."""
    ages: dict[int, list[float]] = {}
    for group in queue.groups():
        ages.setdefault(group.priority, []).extend(group.sinces())
    return {priority: sorted(some) for priority, some in ages.items()}


def _more_urgent(queue: TaskQueue, priority: int, ages: list[float], urgency: float) -> int:
    """How many of this priority come before one of another; the older of two equals is the more urgent."""
    return bisect_left(ages, urgency, key=lambda since: queue.order.urgency(priority, since))


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

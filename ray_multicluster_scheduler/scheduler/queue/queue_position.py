"""Positions in the queue, and which items are ahead. For explanations only; decisions do not use them."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from ray_multicluster_scheduler.scheduler.queue.shape_group import QueueEntry, ShapeGroup
from ray_multicluster_scheduler.scheduler.queue.task_queue import TaskQueue

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """``position`` 1 is next, if all items fit. ``ahead`` are the first items before it, each with the reason."""

    position: int
    ahead: tuple[tuple[str, str], ...]


def queue_position(queue: TaskQueue, task_id: str, now: float) -> QueuePosition | None:
    """The position of an item; None if it is not queued."""
    group = queue.group_of(task_id)
    if group is None:
        return None
    mine = group.entry(task_id)
    urgency = queue.order.urgency(group.priority, mine.since)
    before: list[tuple[tuple[float, ...], str, str]] = []
    others: dict[str, list[tuple[int, str]]] = {}
    own = 0
    for other in queue.groups():
        for entry in other.entries():
            if other.priority != group.priority:
                its = queue.order.urgency(other.priority, entry.since)
                if its < urgency:
                    before.append(((0, its), entry.task_id, _priority_reason(other, group)))
            elif other.shape.owner == group.shape.owner:
                if entry.number < mine.number:
                    own += 1
                    before.append(((1, entry.number), entry.task_id, "came earlier"))
            else:
                others.setdefault(other.shape.owner, []).append((entry.number, entry.task_id))
    before += _by_turns(queue, group, others, own, mine.number, now)
    first = heapq.nsmallest(MAX_NAMED, before)
    return QueuePosition(1 + len(before), tuple((one, why) for _, one, why in first))


def queue_positions(queue: TaskQueue, task_ids: Iterable[str], now: float) -> dict[str, int]:
    """The position of each queued id, as :func:`queue_position` returns it, for many ids at once. It uses the sorted
    numbers that the queue keeps, so the cost hardly grows with the length of the queue."""
    asked: dict[float, list[tuple[str, ShapeGroup]]] = {}
    for one in task_ids:
        group = queue.group_of(one)
        if group is not None:
            asked.setdefault(group.priority, []).append((one, group))
    ages = queue.submission_times() if asked else {}
    positions: dict[str, int] = {}
    for level, some in asked.items():
        others = [(theirs, _urgency_of(queue, one)) for one, theirs in ages.items() if one != level]
        for task_id, mine, before in _items_ahead_at_level(queue, level, some, now):
            urgency = queue.order.urgency(level, mine.since)
            positions[task_id] = 1 + before + sum(theirs.count_before(urgency, key) for theirs, key in others)
    return positions


def first_positions(queue: TaskQueue, most: int, now: float, owner: str | None = None) -> dict[str, int]:
    """The next ``most`` items, all or those of one owner, in the order of the queue, with their positions."""
    lines: dict[tuple[float, str], list[QueueEntry]] = {}
    for group in queue.groups():
        if owner in (None, group.shape.owner):
            lines.setdefault((group.priority, group.shape.owner), []).extend(group.first(most))
    candidates = [entry.task_id for line in lines.values() for entry in heapq.nsmallest(most, line)]
    positions = queue_positions(queue, candidates, now)
    return {one: positions[one] for one in heapq.nsmallest(most, candidates, key=positions.__getitem__)}


def _items_ahead_at_level(
    queue: TaskQueue, level: float, asked: list[tuple[str, ShapeGroup]], now: float
) -> Iterator[tuple[str, QueueEntry, int]]:
    """Each item with the number of items of the same priority before it.

    From its own owner, those that came earlier. From every other owner the same number, plus one if that owner's turn
    is earlier, but at most all of its items. Owners are counted together, by how many of their items wait.
    """
    numbers, arrivals = queue.submission_numbers_by_owner(level), queue.submission_numbers(level)
    turns = {owner: queue.order.turn(queue.account(owner), now) for owner in numbers}
    lengths = sorted(map(len, numbers.values()))
    sums = [0, *accumulate(lengths)]
    line, at = sorted((turn, len(numbers[owner])) for owner, turn in turns.items()), 0
    earlier: list[int] = []
    for task_id, group in sorted(asked, key=lambda one: turns[one[1].shape.owner]):
        turn, mine = turns[group.shape.owner], group.entry(task_id)
        if not turn:  # owners do not count
            yield task_id, mine, arrivals.count_before(mine.number)
            continue
        while line[at][0] < turn:  # its own is in the line, too
            insort(earlier, line[at][1])
            at += 1
        own = numbers[group.shape.owner].count_before(mine.number)
        fewer = bisect_right(lengths, own)
        of_all_owners = sums[fewer] + own * (len(lengths) - fewer)
        yield task_id, mine, of_all_owners + len(earlier) - bisect_right(earlier, own)


def _urgency_of(queue: TaskQueue, priority: float) -> Callable[[float], float]:
    """By the time of submission; the older of two equals is the more urgent."""
    return lambda since: queue.order.urgency(priority, since)


def _by_turns(
    queue: TaskQueue, group: ShapeGroup, others: dict[str, list[tuple[int, str]]], own: int, number: int, now: float
) -> Iterator[tuple[tuple[float, ...], str, str]]:
    """From every other owner as many items as get their turn before the item."""
    turn = queue.order.turn(queue.account(group.shape.owner), now)
    for owner, entries in others.items():
        its = queue.order.turn(queue.account(owner), now)
        if not turn:  # owners do not count
            yield from (((1, one), task_id, "came earlier") for one, task_id in entries if one < number)
            continue
        turns = own + (its < turn)
        why = f"it is the turn of {owner or 'another owner'}, who holds less" if its < turn else f"{owner} takes turns"
        yield from (((1, one), task_id, why) for one, task_id in heapq.nsmallest(turns, entries))


def _priority_reason(other: ShapeGroup, mine: ShapeGroup) -> str:
    if other.priority > mine.priority:
        return f"has priority {other.priority}"
    return f"has waited so long that it counts for more than priority {mine.priority}"

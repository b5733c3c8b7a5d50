"""Positions of many at once: the same as one by one, without a walk through the queue."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.queue.order import FairOrder, FifoOrder, Order
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding
from ray_multicluster_scheduler.scheduler.queue.queue_position import first_positions, queue_position, queue_positions
from ray_multicluster_scheduler.scheduler.queue.ranking import Ranking
from ray_multicluster_scheduler.scheduler.queue.task_queue import TaskQueue
from tests.support.function_calls import count_calls
from tests.unit.lifecycle.driver import task

HOUR = 3600.0
ITEMS = st.lists(
    st.tuples(
        st.sampled_from(["", "ann", "bob", "eve"]),
        st.integers(-1, 1),
        st.sampled_from([0.0, HOUR / 2, 2 * HOUR]),
        st.integers(1, 2),
    ),
    max_size=25,
)


@given(
    items=ITEMS,
    order=st.sampled_from([FairOrder(HOUR), FifoOrder(HOUR)]),
    held=st.lists(st.sampled_from(["ann", "bob"]), max_size=3),
    gone=st.sets(st.integers(0, 24)),
)
def test_they_are_those_that_explain_shows(
    items: list[tuple[str, int, float, int]], order: Order, held: list[str], gone: set[int]
) -> None:
    queue = TaskQueue(order)
    for owner in held:
        queue.charge(owner, Holding(0.5, 0), 0.0)
    for number, (owner, priority, since, cpus) in enumerate(items):
        one = task(f"t{number}", cpus, owner=owner, priority=priority, submitted_at=since)
        queue.enqueue(one, number)
        if number in gone:
            queue.remove(one.id)
        if number in gone and number % 2:  # as a retry does: with the number that it had
            queue.enqueue(one, number)
    ids = [f"t{number}" for number in range(len(items))]
    places = {one: queue_position(queue, one, 5.0) for one in ids}
    reported = queue_positions(queue, [*ids, "nobody"], 5.0)
    assert reported == {one: place.position for one, place in places.items() if place is not None}


def plainly(queue: TaskQueue, waiting: dict[str, TaskDescription], number: dict[str, int], one: str) -> int:
    """The position by what it means: others are counted owner by owner, each for itself."""
    mine, order = waiting[one], queue.order
    urgency = order.urgency(mine.priority, mine.submitted_at)
    before, earlier, lengths = 0, 0, Counter[str]()
    for other_id, other in waiting.items():
        came_earlier = number[other_id] < number[one]
        if other.priority != mine.priority:
            before += order.urgency(other.priority, other.submitted_at) < urgency
        elif other.owner == mine.owner:
            earlier += came_earlier
        elif order.name == "fifo":
            before += came_earlier
        else:
            lengths[other.owner] += 1
    turn = order.turn(queue.account(mine.owner), 5.0)
    for owner, length in lengths.items():
        lead = order.turn(queue.account(owner), 5.0) < turn
        before += min(length, earlier + lead)
    return 1 + earlier + before


@given(
    items=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1)), max_size=40),
    order=st.sampled_from([FairOrder(HOUR), FairOrder(HOUR), FifoOrder(HOUR)]),
    held=st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.5, 1.0])), max_size=8),
    asked=st.sets(st.integers(0, 39)),
)
def test_owners_are_counted_together_as_one_by_one(
    items: list[tuple[int, int]], order: Order, held: list[tuple[int, float]], asked: set[int]
) -> None:
    queue = TaskQueue(order)
    for owner, cost in held:
        queue.charge(f"o{owner}", Holding(cost, 0), 0.0)
    waiting = {
        f"t{number}": task(f"t{number}", owner=f"o{owner}", priority=priority, submitted_at=float(number))
        for number, (owner, priority) in enumerate(items)
    }
    numbers = {task_id: number for number, task_id in enumerate(waiting)}
    for task_id, one in waiting.items():
        queue.enqueue(one, numbers[task_id])
    ids = [one for one in waiting if numbers[one] in asked]
    assert queue_positions(queue, ids, 5.0) == {one: plainly(queue, waiting, numbers, one) for one in ids}


@given(
    items=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 2)), max_size=40),
    order=st.sampled_from([FairOrder(HOUR), FifoOrder(HOUR)]),
    gone=st.sets(st.integers(0, 39)),
    most=st.integers(0, 12),
    owner=st.sampled_from([None, "o0", "nobody"]),
)
def test_the_first_ones_are_those_with_the_lowest_positions(
    items: list[tuple[int, int, int]], order: Order, gone: set[int], most: int, owner: str | None
) -> None:
    queue = TaskQueue(order)
    owners = {}
    for number, (its, priority, cpus) in enumerate(items):
        one = task(f"t{number}", cpus, owner=f"o{its}", priority=priority, submitted_at=float(number))
        queue.enqueue(one, number)
        owners[one.id] = one.owner
    for number in gone & set(range(len(items))):
        queue.remove(f"t{number}")
    found = first_positions(queue, most, 5.0, owner)
    every = queue_positions(queue, [one for one, its in owners.items() if owner in (None, its)], 5.0)
    assert list(found.values()) == sorted(every.values())[:most]
    assert found.items() <= every.items()


def test_the_first_ones_of_a_long_queue_cost_the_same() -> None:
    def calls(size: int) -> int:
        queue = TaskQueue(FairOrder(HOUR))
        for number in range(size):
            queue.enqueue(task(f"t{number}", owner=f"o{number % 3}", priority=number % 2), number)
        return count_calls(partial(first_positions, queue, 50, 0.0))

    assert calls(20_000) < 2 * calls(1000)


@pytest.mark.parametrize("order", [FairOrder(HOUR), FifoOrder(HOUR)])
def test_one_more_that_is_asked_for_costs_the_same_whatever_the_number_of_owners(order: Order) -> None:
    queue = TaskQueue(order)
    for number in range(4000):
        queue.enqueue(task(f"t{number}", owner=f"o{number % 1000}"), number)
    one, many = ([f"t{number}" for number in range(some)] for some in (1, 101))
    costs = [count_calls(partial(queue_positions, queue, ids, 0.0)) for ids in (one, many)]
    assert costs[1] - costs[0] < 100 * 50


@pytest.mark.parametrize("shapes", [1, 1000])
def test_a_page_costs_the_same_in_a_long_queue(shapes: int) -> None:
    def calls(size: int) -> int:
        queue = TaskQueue(FairOrder(HOUR))
        for number in range(size):
            owner, cpus = "ann" if number % 2 else "bob", 1 + number % min(shapes, size // 10)
            queue.enqueue(task(f"t{number}", cpus, owner=owner, priority=number % 3), number)
        asked = [f"t{number}" for number in range(0, size, size // 100)]
        count = count_calls(partial(queue_positions, queue, asked, 0.0))
        assert len(queue_positions(queue, asked, 0.0)) == 100
        return count

    assert calls(20_000) < 2 * calls(1000)


@given(
    steps=st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 9)), max_size=400),
    asked=st.integers(-1, 10),
    often=st.booleans(),
)
def test_a_ranking_counts_those_that_were_added_and_not_taken_out(
    steps: list[tuple[str, int]], asked: int, often: bool
) -> None:
    ranking, there = Ranking(), []
    for step, number in steps:
        if step == "+":
            ranking.add(number)
            there.append(number)
        elif there:
            ranking.remove(there.pop(number % len(there)))
        if often:
            assert ranking.count_before(asked) == sum(one < asked for one in there)
    assert ranking.count_before(asked) == sum(one < asked for one in there)
    assert ranking.count_before(2 * asked, lambda one: 2 * one) == ranking.count_before(asked)
    assert len(ranking) == len(there)


def test_a_ranking_does_not_keep_all_that_left() -> None:
    ranking = Ranking()
    for number in range(10_000):
        ranking.add(number)
        if number >= 10:
            ranking.remove(number - 10)
    assert len(ranking) == 10
    assert ranking.count_before(9_995) == 5
    assert len(ranking._all) < 200


class _Counted(float):
    """A number that counts how often any is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        _Counted.compared += 1
        return super().__lt__(other)


@pytest.mark.parametrize("forwards", [True, False])
def test_those_that_left_are_put_in_order_once(forwards: bool) -> None:
    """And not for each one that is asked for: a page asks for 1000."""
    ranking, size = Ranking(), 20_000
    for number in range(size):
        ranking.add(_Counted(number))
    for number in range(0, size, 2) if forwards else range(size - 2, -1, -2):
        ranking.remove(_Counted(number))
    assert ranking.count_before(_Counted(size / 2)) == size // 4
    _Counted.compared = 0
    assert [ranking.count_before(_Counted(number)) for number in range(100)] == [number // 2 for number in range(100)]
    assert _Counted.compared <= 100 * 2 * (size.bit_length() + 1)

"""Positions of many at once: the same as one by one, for the price of one walk through the queue."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.scheduler.queue.order import FairOrder, FifoOrder, Order
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding
from ray_multicluster_scheduler.scheduler.queue.queue_place import queue_place, queue_positions
from ray_multicluster_scheduler.scheduler.queue.task_queue import TaskQueue
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
def test_they_are_those_that_explain_tells(
    items: list[tuple[str, int, float, int]], order: Order, held: list[str], gone: set[int]
) -> None:
    queue = TaskQueue(order)
    for owner in held:
        queue.take(owner, Holding(0.5, 0), 0.0)
    for number, (owner, priority, since, cpus) in enumerate(items):
        one = task(f"t{number}", cpus, owner=owner, priority=priority, submitted_at=since)
        queue.enqueue(one, number)
        if number in gone:
            queue.remove(one.id)
        if number in gone and number % 2:  # as a retry does: with the number that it had
            queue.enqueue(one, number)
    ids = [f"t{number}" for number in range(len(items))]
    places = {one: queue_place(queue, one, 5.0) for one in ids}
    told = queue_positions(queue, [*ids, "nobody"], 5.0)
    assert told == {one: place.position for one, place in places.items() if place is not None}


def test_a_page_costs_the_same_in_a_long_queue() -> None:
    """Counted in function calls, which do not depend on how busy the machine is."""

    def calls(size: int) -> int:
        queue = TaskQueue(FairOrder(HOUR))
        for number in range(size):
            queue.enqueue(task(f"t{number}", owner="ann" if number % 2 else "bob", priority=number % 3), number)
        asked = [f"t{number}" for number in range(0, size, size // 100)]
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            assert len(queue_positions(queue, asked, 0.0)) == 100
        finally:
            sys.setprofile(None)
        return count

    assert calls(20_000) < 2 * calls(1000)

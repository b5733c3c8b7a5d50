"""TaskQueue and QueueWalk: order, groups, lanes, and their cost."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription
from ray_multicluster_scheduler.scheduler.queue.shape import Lane, shape_of
from ray_multicluster_scheduler.scheduler.queue.task_queue import TaskQueue
from ray_multicluster_scheduler.scheduler.queue.walk import QueueWalk
from tests.unit.lifecycle.driver import job, task


def fill(*items: TaskDescription) -> TaskQueue:
    queue = TaskQueue()
    for number, item in enumerate(items):
        queue.enqueue(item, number)
    return queue


def drain(queue: TaskQueue) -> list[str]:
    """Take everything out in the order of the walk."""
    walk = QueueWalk(queue.groups())
    order = []
    while (picked := walk.next()) is not None:
        task_id, group = picked
        order.append(task_id)
        queue.remove(task_id)
        walk.offer(group)
    return order


def test_priority_then_first_come_over_all_shapes() -> None:
    queue = fill(task("a", cpus=1), task("b", cpus=2, priority=1), task("c", cpus=1, priority=1), task("d", cpus=2))
    assert drain(queue) == ["b", "c", "a", "d"]
    assert len(queue) == 0


def test_a_group_that_is_not_offered_again_is_done() -> None:
    queue = fill(task("a", cpus=2), task("b", cpus=2), task("c", cpus=1))
    walk = QueueWalk(queue.groups())
    assert [picked[0] for picked in iter(walk.next, None)] == ["a", "c"]
    assert not walk


def test_a_better_head_that_comes_meanwhile_goes_first() -> None:
    queue = fill(task("a"), task("b", cpus=2))
    walk = QueueWalk(queue.groups())
    walk.offer(queue.enqueue(task("urgent", priority=9), 5))
    assert [picked[0] for picked in iter(walk.next, None)] == ["urgent", "b"]


def test_a_head_that_leaves_meanwhile_is_skipped() -> None:
    queue = fill(task("a"), task("b"), task("c", cpus=2))
    walk = QueueWalk(queue.groups())
    queue.remove("a")
    queue.remove("c")
    assert [picked[0] for picked in iter(walk.next, None)] == ["b"]


def test_lanes_and_depths() -> None:
    queue = fill(
        task("t1"), task("t2", cpus=3), job("j"), task("p", preferred_cluster="mac"),
        task("x", kind="actor", actor=ActorDescription("x")),
        job("w", preferred_cluster="mac", fallback="wait"), task("w2", preferred_cluster="mac", fallback="wait"),
    )  # fmt: skip
    assert queue.depths() == {
        Lane("task", None): 3,
        Lane("job", None): 1,
        Lane("task", "mac"): 2,
        Lane("job", "mac"): 1,
    }
    assert sorted(queue.waiting_for("mac")) == ["w", "w2"]
    assert queue.waiting_for("linux") == []


def test_membership_and_removal() -> None:
    queue = fill(task("a"), task("b"))
    assert "a" in queue
    assert queue.remove("a")
    assert not queue.remove("a")
    assert "a" not in queue
    group = queue.group_of("b")
    assert group is not None
    assert list(group.ids()) == ["b"]
    assert queue.group_of("a") is None
    queue.remove("b")
    assert list(queue.groups()) == []


def test_an_item_may_come_back_with_its_old_number() -> None:
    queue = fill(task("a"), task("b"), task("c"))
    queue.remove("a")
    queue.enqueue(task("a"), 0)
    assert drain(queue) == ["a", "b", "c"]


def test_what_placement_reads_makes_the_shape() -> None:
    base = shape_of(task("a"), retry=False)
    assert shape_of(task("b", priority=5, name="x", run_timeout=9.0), retry=False) == base
    different = [
        shape_of(task("b", cpus=2), retry=False),
        shape_of(task("b", tags=("x",)), retry=False),
        shape_of(task("b", require_tags=("x",)), retry=False),
        shape_of(task("b", preferred_cluster="x"), retry=False),
        shape_of(task("b", fallback="wait"), retry=False),
        shape_of(task("b", allow_clusters=("x",)), retry=False),
        shape_of(task("b", deny_clusters=("x",)), retry=False),
        shape_of(task("b", owner="x"), retry=False),
        shape_of(task("b", kind="actor", actor=ActorDescription("x")), retry=False),
        shape_of(task("b"), retry=True),
        shape_of(job("b", cpus=1), retry=False),
    ]
    assert len({base, *different}) == len(different) + 1
    turned = shape_of(task("b", requirements={"GPU": 1.0, "CPU": 1.0}), retry=False)
    assert turned == shape_of(task("c", requirements={"CPU": 1.0, "GPU": 1.0}), retry=False)


entries = st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4), st.booleans()), max_size=60)


@given(entries)
def test_the_walk_is_the_sorted_order_less_what_was_removed(items: list[tuple[int, int, bool]]) -> None:
    queue = fill(*(task(f"t{i}", cpus=cpus, priority=priority) for i, (priority, cpus, _) in enumerate(items)))
    for index, (_, _, gone) in enumerate(items):
        if gone:
            queue.remove(f"t{index}")
    left = [(-priority, index) for index, (priority, _, gone) in enumerate(items) if not gone]
    assert drain(queue) == [f"t{index}" for _, index in sorted(left)]


def test_removed_items_do_not_pile_up() -> None:
    queue = TaskQueue()
    queue.enqueue(task("stays", priority=9), 0)
    for number in range(1, 5000):
        queue.enqueue(task(f"t{number}"), number)
        queue.remove(f"t{number}")
    group = queue.group_of("stays")
    assert group is not None
    assert len(group._heap) < 100


def test_taking_one_costs_the_same_in_a_long_queue() -> None:
    """Counted in function calls, which do not depend on how busy the machine is."""

    def calls(size: int) -> int:
        queue = fill(*(task(f"t{number}") for number in range(size)))
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            for number in range(500):
                picked = QueueWalk(queue.groups()).next()
                queue.remove(picked[0] if picked else "")
                queue.enqueue(task(f"x{number}"), size + number)
        finally:
            sys.setprofile(None)
        return count

    assert calls(50_000) < 1.5 * calls(1000)

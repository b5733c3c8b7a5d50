"""TaskQueue: order, groups, lanes, owners, and their cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription
from ray_multicluster_scheduler.scheduler.queue.need_index import Need, amounts_of
from ray_multicluster_scheduler.scheduler.queue.order import FairOrder, FifoOrder
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding, OwnerAccount
from ray_multicluster_scheduler.scheduler.queue.owner_queue import OwnerQueue
from ray_multicluster_scheduler.scheduler.queue.queue_position import queue_position
from ray_multicluster_scheduler.scheduler.queue.shape import EligibilityClass, QueueKey, shape_of
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup
from ray_multicluster_scheduler.scheduler.queue.task_queue import TaskQueue
from tests.support.function_calls import count_calls
from tests.unit.lifecycle.driver import job, task

HOUR = 3600.0


def anything(eligibility: EligibilityClass) -> None:
    """Look at all of them."""


def fill(*items: TaskDescription, queue: TaskQueue | None = None) -> TaskQueue:
    queue = TaskQueue(FairOrder(HOUR)) if queue is None else queue
    for number, item in enumerate(items):
        queue.enqueue(item, number)
    return queue


def fair(**accounts: OwnerAccount) -> TaskQueue:
    return TaskQueue(FairOrder(HOUR), lambda owner: accounts.get(owner) or OwnerAccount())


def head(queue: TaskQueue, rooms: Any = anything, now: float = 0.0) -> str | None:
    group = queue.first(rooms, now)
    return None if group is None else group.head().task_id


def drain(queue: TaskQueue) -> list[str]:
    """Take everything out, in the order in which it would be looked at."""
    order = []
    while (first := head(queue)) is not None:
        order.append(first)
        queue.remove(first)
    return order


def room(**amounts: float) -> Any:
    """One place where this much is free."""

    def rooms(eligibility: EligibilityClass) -> list[Need]:
        return [amounts_of(amounts, eligibility.names)]

    return rooms


# ---- order


def test_priority_then_first_come_over_all_shapes() -> None:
    queue = fill(task("a", cpus=1), task("b", cpus=2, priority=1), task("c", cpus=1, priority=1), task("d", cpus=2))
    assert drain(queue) == ["b", "c", "a", "d"]
    assert len(queue) == 0


def test_a_priority_with_a_fraction_goes_between_its_neighbours() -> None:
    queue = fill(task("a", priority=2), task("b", priority=3), task("c", priority=2.5), task("d", priority=3.0))
    assert drain(queue) == ["b", "d", "c", "a"]
    group = fill(task("a", priority=5.0)).group_of("a")
    assert group is not None
    assert str(group.priority) == "5"


def test_to_have_waited_long_is_worth_a_step_of_priority() -> None:
    old, young = task("old", submitted_at=0.0), task("young", priority=1, submitted_at=HOUR - 1)
    assert drain(fill(old, young)) == ["young", "old"]
    old, young = task("old", submitted_at=0.0), task("young", priority=1, submitted_at=HOUR + 1)
    assert drain(fill(old, young)) == ["old", "young"]


def test_a_level_is_as_urgent_as_its_oldest_that_could_go() -> None:
    """A wide item has waited for ten hours: that does not make the small ones more urgent."""
    queue = fill(
        task("wide", cpus=64), task("small", submitted_at=10 * HOUR), task("urgent", priority=1, submitted_at=10 * HOUR)
    )
    assert head(queue, room(CPU=4.0)) == "urgent"
    assert head(queue) == "wide"


def test_a_parked_group_is_left_out_until_it_is_not() -> None:
    queue = fill(task("a", cpus=2), task("b", cpus=2), task("c", cpus=1))
    first = queue.first(anything, 0.0)
    assert first is not None
    queue.park(first)
    assert head(queue) == "c"
    queue.enqueue(task("early", cpus=2), -1)  # it joins them: nobody looks at it either
    assert head(queue) == "c"
    queue.unpark(first)
    assert head(queue) == "early"
    queue.unpark(first)
    assert head(queue) == "early"


def test_parking_an_empty_group() -> None:
    queue = fill(task("a"))
    first = queue.first(anything, 0.0)
    assert first is not None
    queue.remove("a")
    queue.park(first)
    queue.unpark(first)
    assert head(queue) is None
    queue.enqueue(task("b"), 2)
    assert head(queue) == "b"


def test_the_first_that_what_is_free_suffices_for() -> None:
    queue = fill(task("wide", cpus=8), task("gpu", requirements={"CPU": 1.0, "GPU": 1.0}), task("small"))
    assert head(queue, room(CPU=4.0)) == "small"
    assert head(queue, room(CPU=4.0, GPU=1.0)) == "gpu"
    assert head(queue, room(CPU=8.0)) == "wide"
    assert head(queue, room(memory=8.0)) is None
    assert head(queue, lambda eligibility: []) is None


def test_only_what_is_above_a_priority() -> None:
    queue = fill(task("a", priority=1), task("b", priority=5))
    first = queue.first(anything, 0.0, above=1)
    assert first is not None
    assert first.head().task_id == "b"
    assert queue.first(anything, 0.0, above=5) is None


entries = st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4), st.booleans()), max_size=60)


@given(entries)
def test_the_order_is_the_sorted_one_less_what_was_removed(items: list[tuple[int, int, bool]]) -> None:
    queue = fill(*(task(f"t{i}", cpus=cpus, priority=priority) for i, (priority, cpus, _) in enumerate(items)))
    for index, (_, _, gone) in enumerate(items):
        if gone:
            queue.remove(f"t{index}")
    left = [(-priority, index) for index, (priority, _, gone) in enumerate(items) if not gone]
    assert drain(queue) == [f"t{index}" for _, index in sorted(left)]


# ---- owners


def test_the_owner_who_holds_less_has_the_next_turn() -> None:
    queue = fair()
    fill(*(task(f"a{n}", owner="a") for n in range(3)), task("b0", owner="b"), queue=queue)
    queue.account("a").charge(Holding(0.5, 0), 0.0)
    assert head(queue) == "b0"
    queue.account("b").charge(Holding(0.75, 0), 0.0)
    assert head(queue) == "a0"


def test_weights_count() -> None:
    queue = fair(a=OwnerAccount(weight=3.0))
    fill(task("a0", owner="a"), task("b0", owner="b"), queue=queue)
    queue.account("a").charge(Holding(0.5, 0), 0.0)
    queue.account("b").charge(Holding(0.25, 0), 0.0)
    assert head(queue) == "a0"  # a third of its weight is less than a quarter of b's


def test_who_holds_as_much_but_has_used_less_has_the_next_turn() -> None:
    queue = fair()
    fill(task("a0", owner="a"), task("b0", owner="b"), queue=queue)
    queue.account("a").charge(Holding(0.5, 0), 0.0)
    queue.account("a").refund(Holding(0.5, 0), 10.0)
    assert head(queue, now=10.0) == "b0"
    queue.account("b").charge(Holding(0.5, 0), 10.0)
    queue.account("b").refund(Holding(0.5, 0), 30.0)
    assert head(queue, now=30.0) == "a0"


def test_what_one_did_not_use_cannot_be_saved_up() -> None:
    queue = fair(b=OwnerAccount(weight=4.0))
    fill(task("a0", owner="a"), task("b0", owner="b"), queue=queue)
    queue.charge("a", Holding(1.0, 0), 0.0)
    queue.refund("a", Holding(1.0, 0, since=990.0), 1000.0)
    queue.charge("a", Holding(1.0, 0), 1000.0)
    queue.charge("b", Holding(1.0, 0), 1000.0)  # it could have had turns long before: two items' worth, it gets of them
    assert queue.account("a").used(1000.0) == 1000.0
    assert queue.account("b").used(1000.0) / 4.0 == 1000.0 - 2 * 10.0


def test_first_come_regardless_of_owner() -> None:
    queue = TaskQueue(FifoOrder(HOUR))
    fill(task("a0", owner="a"), task("b0", owner="b"), queue=queue)
    queue.account("a").charge(Holding(0.9, 0), 0.0)
    assert drain(queue) == ["a0", "b0"]


def test_an_owner_who_is_paused_or_at_a_limit_is_passed_over() -> None:
    queue = fair(busy=OwnerAccount(max_running=1), greedy=OwnerAccount(max_gpus=2))
    gpus = {"CPU": 1.0, "GPU": 2.0}
    fill(
        task("a", owner="busy"), task("b", owner="greedy", requirements=gpus), task("c", owner="greedy"),
        task("d", owner="paused"), queue=queue,
    )  # fmt: skip
    queue.account("paused").paused = "at lunch"
    queue.account("busy").charge(Holding(0.1, 0), 0.0)
    queue.account("greedy").charge(Holding(0.1, 1), 0.0)
    assert drain(queue) == ["c"]
    group = {name: queue.group_of(name) for name in "abd"}
    assert {name: queue.refusal(one) for name, one in group.items() if one is not None} == {
        "a": ("OWNER_LIMIT", "busy: 1 of its items is on clusters; its max_running is 1"),
        "b": ("OWNER_LIMIT", "greedy: it holds 1 GPU; its max_gpus is 2"),
        "d": ("OWNER_PAUSED", "the queue of paused is paused: at lunch"),
    }
    assert head(queue, room(CPU=1.0, GPU=8.0)) is None
    queue.refund("busy", Holding(0.1, 0), 1.0)
    queue.refund("greedy", Holding(0.1, 1), 1.0)
    assert queue.unblocked_owners == {"busy", "greedy"}
    assert drain(queue) == ["a", "b"]


def test_an_owner_with_nothing_is_forgotten() -> None:
    queue = fair()
    fill(task("a0", owner="a"), queue=queue)
    before = queue.account("a")
    before.charge(Holding(0.5, 0), 0.0)
    queue.remove("a0")
    queue.drop_idle_accounts()
    assert queue.account("a") is before
    queue.refund("a", Holding(0.5, 0), 1.0)
    queue.drop_idle_accounts()
    assert queue.account("a") is not before
    queue.pause("b", "for now")
    queue.drop_idle_accounts()
    assert queue.account("b").paused == "for now"
    queue.resume("b")
    queue.drop_idle_accounts()
    assert "b" not in queue._accounts


# ---- groups and lanes


def test_lanes_and_depths() -> None:
    queue = fill(
        task("t1"), task("t2", cpus=3), job("j"), task("p", preferred_cluster="mac"),
        task("x", kind="actor", actor=ActorDescription("x")),
        job("w", preferred_cluster="mac", fallback="wait"), task("w2", preferred_cluster="mac", fallback="wait"),
    )  # fmt: skip
    assert queue.depths() == {
        QueueKey("task", None): 3,
        QueueKey("job", None): 1,
        QueueKey("task", "mac"): 2,
        QueueKey("job", "mac"): 1,
    }
    assert sorted(queue.waiting_only_for("mac")) == ["w", "w2"]
    assert queue.waiting_only_for("linux") == []
    assert queue.group_count == 7


def test_an_item_for_one_cluster_is_considered_for_that_one_only() -> None:
    queue = fill(task("w", preferred_cluster="mac", fallback="wait"), task("p", preferred_cluster="mac"))
    assert head(queue, lambda eligibility: [(9.0,)] if eligibility.demands.only in (None, "linux") else []) == "p"
    assert head(queue, lambda eligibility: [(9.0,)] if eligibility.demands.only in (None, "mac") else []) == "w"


def test_membership_and_removal() -> None:
    queue = fill(task("a"), task("b"))
    assert "a" in queue
    assert queue.remove("a")
    assert not queue.remove("a")
    assert "a" not in queue
    group = queue.group_of("b")
    assert group is not None
    assert list(group.task_ids()) == ["b"]
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
    same = task("b", priority=5, name="x", run_timeout=9.0, labels={"a": "b"}, preemptible=True, min_runtime_s=1.0)
    assert shape_of(same, retry=False) == base
    different = [
        shape_of(task("b", cpus=2), retry=False),
        shape_of(task("b", tags=("x",)), retry=False),
        shape_of(task("b", require_tags=("x",)), retry=False),
        shape_of(task("b", preferred_cluster="x"), retry=False),
        shape_of(task("b", fallback="wait"), retry=False),
        shape_of(task("b", allow_clusters=("x",)), retry=False),
        shape_of(task("b", deny_clusters=("x",)), retry=False),
        shape_of(task("b", owner="x"), retry=False),
        shape_of(task("b", pool="x"), retry=False),
        shape_of(task("b", kind="actor", actor=ActorDescription("x")), retry=False),
        shape_of(task("b"), retry=True),
        shape_of(job("b", cpus=1), retry=False),
    ]
    assert len({base, *different}) == len(different) + 1
    turned = shape_of(task("b", requirements={"GPU": 1.0, "CPU": 1.0}), retry=False)
    assert turned == shape_of(task("c", requirements={"CPU": 1.0, "GPU": 1.0}), retry=False)


def test_removed_items_do_not_pile_up() -> None:
    queue = TaskQueue()
    queue.enqueue(task("stays"), -1)
    for number in range(5000):
        queue.enqueue(task(f"t{number}"), number)
        queue.remove(f"t{number}")
    group = queue.group_of("stays")
    assert group is not None
    assert len(group._heap) < 100


def test_an_empty_group_has_no_head() -> None:
    with pytest.raises(IndexError):
        ShapeGroup(shape_of(task("a"), retry=False), 0).head()


# ---- the place of one


def test_the_place_in_the_queue_and_who_is_ahead() -> None:
    queue = fair()
    fill(
        task("mine0", owner="me"), task("urgent", owner="x", priority=2), task("its0", owner="you"),
        task("its1", owner="you"), task("mine1", owner="me"), task("later", owner="me"),
        task("low", owner="x", priority=-1), queue=queue,
    )  # fmt: skip
    queue.account("me").charge(Holding(0.5, 0), 0.0)
    place = queue_position(queue, "mine1", 0.0)
    assert place is not None
    assert place.position == 5
    assert place.ahead == (
        ("urgent", "has priority 2"),
        ("mine0", "came earlier"),
        ("its0", "it is the turn of you, who holds less"),
        ("its1", "it is the turn of you, who holds less"),
    )
    first = queue_position(queue, "urgent", 0.0)
    assert first is not None
    assert (first.position, first.ahead) == (1, ())
    assert queue_position(queue, "nobody", 0.0) is None


def test_owners_take_turns_and_old_ones_count_for_more() -> None:
    queue = fair()
    fill(
        task("old", owner="z", priority=-1, submitted_at=0.0), task("mine0", owner="me", submitted_at=2 * HOUR),
        task("its0", owner="you", submitted_at=2 * HOUR), task("mine1", owner="me", submitted_at=2 * HOUR),
        task("its1", owner="you", submitted_at=2 * HOUR), queue=queue,
    )  # fmt: skip
    place = queue_position(queue, "mine1", 0.0)
    assert place is not None
    assert place.ahead == (
        ("old", "has waited so long that it counts for more than priority 0"),
        ("mine0", "came earlier"),
        ("its0", "you takes turns"),
    )


def test_first_come_places_do_not_depend_on_owners() -> None:
    queue = TaskQueue(FifoOrder(HOUR))
    fill(task("a", owner="a"), task("b", owner="b"), task("c", owner="a"), queue=queue)
    place = queue_position(queue, "b", 0.0)
    assert place is not None
    assert place.ahead == (("a", "came earlier"),)


# ---- cost


def test_taking_one_costs_the_same_in_a_long_queue() -> None:
    """Counted in function calls, which do not depend on how busy the machine is."""

    def calls(size: int) -> int:
        queue = fill(*(task(f"t{number}") for number in range(size)))

        def take_and_add() -> None:
            for number in range(500):
                queue.remove(head(queue) or "")
                queue.enqueue(task(f"x{number}"), size + number)

        return count_calls(take_and_add)

    assert calls(50_000) < 1.5 * calls(1000)


def test_removed_items_leave_no_state() -> None:
    queue = fill(task("a", 1), task("b", 1), task("c", 2, owner="ann"), job("d", priority=3), task("e", 1, tags=("x",)))
    assert queue._levels
    for name in "abcde":
        queue.remove(name)
    left = [
        queue._levels,
        queue._priorities,
        queue._groups,
        queue._group_of,
        queue._eligibility_counts,
        queue._owners_by_share,
    ]
    assert not any(left)


def test_of_two_in_one_bay_the_second_keeps_it() -> None:
    queue = fill(task("a", 1), task("b", 2))
    (eligibility,) = queue._eligibility_counts
    queue.remove("a")
    assert dict(queue._eligibility_counts) == {eligibility: 1}


def test_an_owner_without_waiting_items_is_skipped_when_its_limit_is_lifted() -> None:
    queue = fair(ann=OwnerAccount(max_running=1), bob=OwnerAccount(max_running=1), eve=OwnerAccount())
    held = Holding(0.5, 0.0)
    for owner in ("ann", "bob", "eve"):
        queue.charge(owner, held, 0.0)
    fill(task("a", owner="ann"), task("e", owner="eve"), queue=queue)
    for owner in ("ann", "bob", "eve"):
        queue.refund(owner, held, 1.0)
    assert queue.unblocked_owners == {"ann"}


def test_first_of_equal_owners_is_served_without_asking_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = fair()
    queue.charge("rich", Holding(0.5, 0.0), 0.0)
    fill(task("r", owner="rich"), task("b", owner="bob"), task("a", owner="ann"), queue=queue)
    asked: list[str] = []
    first = OwnerQueue.first

    def watched(one: OwnerQueue, rooms: Any) -> Any:
        found = first(one, rooms)
        assert found is not None
        asked.append(found[1].shape.owner)
        return found

    monkeypatch.setattr(OwnerQueue, "first", watched)
    assert head(queue) == "b"
    assert sorted(asked) == ["ann", "bob"]


# ---- a walk through everybody


class CountedOrder(FairOrder):
    """How often is an owner asked for its turn?"""

    asked = 0

    def turn(self, account: OwnerAccount, now: float) -> tuple[float, ...]:
        self.asked += 1
        return super().turn(account, now)


def test_a_walk_past_many_owners_asks_each_of_them_once() -> None:
    """Not once for each group of another: thousands of owners would hold up everything else."""
    order = CountedOrder(HOUR)
    queue = TaskQueue(order)
    for number in range(300):
        queue.enqueue(task(f"t{number}", cpus=1 + number // 150, owner=f"o{number % 150}"), number)
    seen = []
    while (group := queue.next_in_iteration(5.0)) is not None:
        seen.append(group.head().task_id)
        queue.park(group)
    assert sorted(seen) == sorted(f"t{number}" for number in range(300))
    assert order.asked == 150


LIMITS: dict[str, dict[str, Any]] = {"ann": {"weight": 2.0}, "bob": {"max_running": 1}, "cyd": {"max_gpus": 1.0}}
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("comes"),
            st.sampled_from(["ann", "bob", "cyd", "dan"]),
            st.integers(1, 3),
            st.integers(0, 2),
            st.integers(0, 2),
            st.floats(0, 3 * HOUR),
        ),
        st.tuples(st.sampled_from(["parks", "goes", "leaves"])),
        st.tuples(st.sampled_from(["pauses", "resumes"]), st.sampled_from(["ann", "dan"])),
        st.tuples(st.just("time passes")),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_lazy_iteration_names_the_same_as_a_full_scan(steps: list[tuple[Any, ...]]) -> None:
    """Whatever happens on the way."""
    queue = TaskQueue(FairOrder(HOUR), lambda owner: OwnerAccount(**LIMITS.get(owner, {})))
    parked: list[ShapeGroup] = []
    now = 0.0
    for number, (what, *how) in enumerate(steps):
        named = queue.next_in_iteration(now)
        assert named is queue.first(anything, now)
        if what == "comes":
            owner, cpus, gpus, priority, since = how
            needs = {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}
            one = task(f"t{number}", requirements=needs, owner=owner, priority=priority, submitted_at=since)
            queue.enqueue(one, number)
        elif what == "parks" and named is not None:
            queue.park(named)
            parked.append(named)
        elif what == "goes" and named is not None:
            queue.charge(named.shape.owner, Holding(named.need["CPU"], named.need.get("GPU", 0.0), now), now)
            queue.remove(named.head().task_id)
        elif what == "leaves" and parked:
            queue.unpark(parked.pop())
        elif what == "pauses":
            queue.pause(*how, "")
        elif what == "resumes":
            queue.resume(*how)
        elif what == "time passes":
            now += 7.0
    assert queue.next_in_iteration(now) is queue.first(anything, now)

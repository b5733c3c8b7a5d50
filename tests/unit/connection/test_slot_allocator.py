"""The book of places: one holder each, first come first served, nobody forgotten."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model.resources import shape_of
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.slot_allocator import (
    EARLY_S,
    MAX_EARLY,
    SlotAllocator,
)

CPU, GPU = shape_of({"CPU": 1.0}), shape_of({"CPU": 1.0, "GPU": 1.0})
A, B, C, D, E = (("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1))
Key = tuple[str, int]


def test_a_call_with_a_slot_is_submitted_at_once() -> None:
    assert SlotAllocator().hold(A, CPU) == [A]


def test_waiting_calls_get_freed_slots_in_order_of_arrival() -> None:
    slots = SlotAllocator()
    slots.hold(A, CPU)
    assert slots.wait(B, CPU, overlap=False) == []
    assert slots.wait(C, CPU, overlap=False) == []
    assert slots.ended(A) == (B, [B])
    assert slots.ended(B) == (C, [C])
    assert slots.ended(C) == (None, [])


def test_slots_of_another_shape_are_not_used() -> None:
    slots = SlotAllocator()
    slots.hold(A, GPU)
    slots.wait(B, CPU, overlap=True)
    assert slots.ended(A) == (None, [])
    assert slots.start(B) == [B]
    assert shape_of({"GPU": 1.0, "CPU": 1.0}) == GPU, "the order of names does not matter"


def test_one_early_call_per_slot_gets_the_first_freed_slot() -> None:
    slots = SlotAllocator()
    slots.hold(A, CPU)
    slots.hold(B, CPU)
    assert [slots.wait(key, CPU, overlap=True) for key in (C, D, E)] == [[C], [D], []]
    assert slots.ended(B) == (C, [E]), "C is with Ray already; E takes its turn there"
    assert slots.ended(A) == (D, [])
    assert slots.ended(C) == (E, [])


def test_a_call_that_may_not_be_early_blocks_those_behind_it() -> None:
    slots = SlotAllocator()
    slots.hold(A, CPU)
    assert slots.wait(B, CPU, overlap=False) == []
    assert slots.wait(C, CPU, overlap=True) == []
    assert slots.ended(A) == (B, [B, C])


def test_an_early_call_that_ends_first_frees_no_slot() -> None:
    slots = SlotAllocator()
    slots.hold(A, CPU)
    slots.wait(B, CPU, overlap=True)
    slots.wait(C, CPU, overlap=True)
    assert slots.ended(B) == (None, [C])
    assert slots.ended(A) == (C, [])


def test_a_slot_from_the_control_plane_starts_a_waiting_call_once() -> None:
    slots = SlotAllocator()
    slots.wait(A, CPU, overlap=True)
    assert slots.start(A) == [A]
    assert slots.start(A) == []
    assert slots.start(B) == [], "unknown"
    slots.wait(B, CPU, overlap=True)  # with Ray from now on
    slots.wait(C, CPU, overlap=True)
    assert slots.start(B) == [C], "B is with Ray; one more place, so one more may wait there"
    assert slots.ended(A) == (C, [])


def test_only_waiting_calls_can_be_recalled() -> None:
    slots = SlotAllocator()
    slots.hold(A, CPU)
    slots.wait(B, CPU, overlap=True)
    slots.wait(C, CPU, overlap=True)
    assert [slots.recall(key) for key in (A, B, C, C, D)] == [False, False, True, False, False]
    assert slots.ended(A) == (B, [])
    assert slots.ended(B) == (None, [])


def test_a_call_that_arrives_after_all_slots_are_gone_waits_for_a_new_one() -> None:
    slots = SlotAllocator()
    slots.hold(A, CPU)
    assert slots.ended(A) == (None, [])
    assert slots.wait(B, CPU, overlap=True) == []
    assert slots.hold(C, CPU) == [C, B]
    assert slots.ended(C) == (B, [])


def test_short_calls_in_ray_are_limited_to_milliseconds_of_work() -> None:
    def early_after(took: float) -> int:
        slots = SlotAllocator()
        slots.hold(("holder", 0), CPU)
        for number in range(10):  # each takes over the place of the one before
            slots.wait(("short", number), CPU, overlap=False)
        slots.ended(("holder", 0), took)
        for number in range(9):
            slots.ended(("short", number), took)
        given = [slots.wait(("next", number), CPU, overlap=True) for number in range(20)]
        return sum(len(keys) for keys in given)

    assert early_after(0.0) == MAX_EARLY
    assert 1 < early_after(EARLY_S / 4) < MAX_EARLY
    assert early_after(1.0) == 1


def test_second_delayed_short_call_changes_the_limit() -> None:
    def early_after(*took: float) -> int:
        slots = SlotAllocator()
        slots.hold(("holder", 0), CPU)
        for number, seconds in enumerate(took):  # each takes over the place of the one before
            slots.wait(("short", number), CPU, overlap=False)
            slots.ended(("holder", 0) if number == 0 else ("short", number - 1), seconds)
        given = [slots.wait(("next", number), CPU, overlap=True) for number in range(20)]
        return sum(len(keys) for keys in given)

    short = [0.0] * 7
    assert early_after(*short, 1.0) == early_after(1.0, *short) == MAX_EARLY
    assert early_after(1.0, *short[1:], 1.0) == 1
    assert early_after(0.0, 0.0, 0.0, 1.0) == 1  # too few to tell


ACTIONS = ["hold", "queue", "overlap", "start", "take_back", "end", "end", "end"]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 30)), max_size=150)


class World:
    """What a control plane and Ray would see of the book."""

    def __init__(self) -> None:
        self.slots = SlotAllocator()
        self.shapes: dict[Key, object] = {}
        self.arrived: dict[object, list[Key]] = defaultdict(list)
        self.began: dict[object, list[Key]] = defaultdict(list)
        self.places: dict[object, set[Key]] = defaultdict(set)
        self.with_ray: set[Key] = set()
        self.over: set[Key] = set()
        self.jumped: set[Key] = set()

    def give(self, keys: list[Key]) -> None:
        for key in keys:
            assert key not in self.with_ray, "given to Ray twice"
            assert key not in self.over, "begun after its end"
            self.with_ray.add(key)
            self.began[self.shapes[key]].append(key)

    def step(self, step: str, number: int, fresh: Key) -> None:
        shape = (CPU, GPU)[number % 2]
        known = list(self.shapes)
        key = known[number % len(known)] if known else fresh
        if step in ("hold", "queue", "overlap"):
            self.shapes[fresh] = shape
            if step == "hold":
                self.places[shape].add(fresh)
                self.give(self.slots.hold(fresh, shape))
            else:
                self.arrived[shape].append(fresh)
                self.give(self.slots.wait(fresh, shape, overlap=step == "overlap"))
        elif step == "start" and known:
            if key not in self.over:
                self.places[self.shapes[key]].add(key)
                if key not in self.with_ray:
                    self.jumped.add(key)
            self.give(self.slots.start(key))
        elif step == "take_back" and known:
            waited = key not in self.with_ray and key not in self.over
            assert self.slots.recall(key) == waited
            if waited:
                self.over.add(key)
        elif step == "end":
            running = [one for one in self.with_ray if one not in self.over]
            if running:
                self.end(sorted(running)[number % len(running)])

    def end(self, key: Key) -> None:
        held = self.places[self.shapes[key]]
        heir, given = self.slots.ended(key)
        self.over.add(key)
        if heir is not None:
            assert key in held, "only a place that was held is handed on"
            assert heir not in held, "nobody has two places"
            assert self.shapes[heir] == self.shapes[key]
            held.add(heir)
        held.discard(key)
        self.give(given)

    def check(self) -> None:
        for shape, held in self.places.items():
            early = [key for key in self.with_ray - self.over if self.shapes[key] == shape and key not in held]
            assert len(early) <= len(held), "one per place may wait in Ray"
            assert held <= self.with_ray, "who has a place has begun"
            waiting = [key for key in self.arrived[shape] if key not in self.with_ray and key not in self.over]
            turns = [key for key in self.began[shape] if key in self.arrived[shape] and key not in self.jumped]
            assert turns == [key for key in self.arrived[shape] if key in turns], "first come, first served"
            if turns and waiting:
                assert self.arrived[shape].index(turns[-1]) < self.arrived[shape].index(waiting[0])


@given(STEPS)
def test_any_sequence_keeps_one_holder_per_slot_and_loses_no_call(steps: list[tuple[str, int]]) -> None:
    world = World()
    for count, (step, number) in enumerate(steps):
        world.step(step, number, (f"t{count}", 1))
        world.check()
    while left := sorted(world.shapes.keys() - world.over):  # every call ends when places keep coming
        world.step("start", list(world.shapes).index(left[0]), ("", 0))
        for key in sorted(world.with_ray - world.over):
            world.end(key)
        world.check()
    assert not world.slots._shapes
    assert not world.slots._queues
    assert all(not held for held in world.places.values())

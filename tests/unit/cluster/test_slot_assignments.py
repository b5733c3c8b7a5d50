"""Places: who has room, and who was sent before there is any."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import ActorDescription
from ray_multicluster_scheduler.common.model.resources import shape_of
from ray_multicluster_scheduler.scheduler.cluster.slot_assignments import SlotAssignments
from tests.unit.lifecycle.driver import actor, job, task

ONE_CPU = shape_of({"CPU": 1.0})


def test_places_are_counted_by_kind_and_class() -> None:
    places = SlotAssignments()
    places.assign(task("short"), short=True)
    places.assign(task("long"))
    places.assign(job("j"))
    assert (places.short_slots(ONE_CPU), places.running_jobs, len(places.held)) == (1, 1, 3)
    assert places.short_slot_shapes() == [ONE_CPU]
    for name in ("short", "long", "j"):
        assert places.release(name) is not None
    assert (places.short_slots(ONE_CPU), places.running_jobs, places.held) == (0, 0, {})
    assert places.short_slot_shapes() == []
    assert places.release("short") is None


def test_an_actor_is_ready_once() -> None:
    places = SlotAssignments()
    places.assign(actor("a"))
    places.actor_ready("a")
    places.actor_ready("a")
    places.actor_ready("stranger")
    assert places.ready_actors == 1
    places.release("a")
    assert places.ready_actors == 0


def test_what_was_sent_ahead_waits_in_the_order_in_which_it_was_sent() -> None:
    places = SlotAssignments()
    for name, cpus in (("t1", 1), ("t2", 2), ("t3", 1)):
        places.add_prefetched(task(name, cpus=cpus), 5.0)
    assert places.prefetched_count(ONE_CPU) == 2
    assert list(places.oldest_prefetched(ONE_CPU)) == ["t1", "t3"]
    assert places.remove_prefetched("t1") is not None
    assert places.remove_prefetched("t1") is None
    assert list(places.oldest_prefetched(ONE_CPU)) == ["t3"]
    places.remove_prefetched("t3")
    assert list(places.oldest_prefetched(ONE_CPU)) == []


def test_every_change_is_reported() -> None:
    reported: list[int] = []
    places = SlotAssignments(lambda: reported.append(1))
    places.assign(actor("a"))
    places.actor_ready("a")
    places.release("a")
    places.add_prefetched(task("t"), 5.0)
    places.remove_prefetched("t")
    assert len(reported) == 5


def test_whether_something_less_urgent_was_sent_ahead() -> None:
    places = SlotAssignments()
    places.add_prefetched(task("t", priority=2), 5.0)
    assert (places.has_prefetched_below(3), places.has_prefetched_below(2)) == (True, False)
    places.remove_prefetched("t")
    assert not places.has_prefetched_below(3)


def test_items_that_hold_nothing_are_counted() -> None:
    places = SlotAssignments()
    counts = []
    for one in (job("j"), job("sized", cpus=2), task("zero", cpus=0), actor("a"), actor("held", cpus=1)):
        places.assign(one)
        counts.append(places.undeclared)
    assert counts == [1, 1, 2, 2, 2], "an actor needs a CPU until it is ready"
    for _ in range(2):
        places.actor_ready("a")
        places.actor_ready("held")
    assert places.undeclared == 3
    for name in ("j", "sized", "zero", "a", "held"):
        places.release(name)
    assert places.undeclared == 0


def test_an_actor_that_is_placed_by_nothing_is_counted_once() -> None:
    places = SlotAssignments()
    places.assign(task("a", cpus=0, kind="actor", actor=ActorDescription("a")))
    places.actor_ready("a")
    assert places.undeclared == 1

"""Places: who has room, and who was sent before there is any."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model.resources import shape_of
from ray_multicluster_scheduler.scheduler.cluster.slot_assignments import Places
from tests.unit.lifecycle.driver import actor, job, task

ONE_CPU = shape_of({"CPU": 1.0})


def test_places_are_counted_by_kind_and_class() -> None:
    places = Places()
    places.take(task("short"), short=True)
    places.take(task("long"))
    places.take(job("j"))
    assert (places.short_places(ONE_CPU), places.running_jobs, len(places.held)) == (1, 1, 3)
    assert places.short_shapes() == [ONE_CPU]
    for name in ("short", "long", "j"):
        assert places.give_back(name) is not None
    assert (places.short_places(ONE_CPU), places.running_jobs, places.held) == (0, 0, {})
    assert places.short_shapes() == []
    assert places.give_back("short") is None


def test_an_actor_is_ready_once() -> None:
    places = Places()
    places.take(actor("a"))
    places.actor_ready("a")
    places.actor_ready("a")
    places.actor_ready("stranger")
    assert places.ready_actors == 1
    places.give_back("a")
    assert places.ready_actors == 0


def test_what_was_sent_ahead_waits_in_the_order_in_which_it_was_sent() -> None:
    places = Places()
    for name, cpus in (("t1", 1), ("t2", 2), ("t3", 1)):
        places.send_ahead(task(name, cpus=cpus), 5.0)
    assert places.waiting(ONE_CPU) == 2
    assert list(places.oldest_ahead(ONE_CPU)) == ["t1", "t3"]
    assert places.leave_ahead("t1") is not None
    assert places.leave_ahead("t1") is None
    assert list(places.oldest_ahead(ONE_CPU)) == ["t3"]
    places.leave_ahead("t3")
    assert list(places.oldest_ahead(ONE_CPU)) == []


def test_every_change_is_told() -> None:
    told: list[int] = []
    places = Places(lambda: told.append(1))
    places.take(actor("a"))
    places.actor_ready("a")
    places.give_back("a")
    places.send_ahead(task("t"), 5.0)
    places.leave_ahead("t")
    assert len(told) == 5


def test_whether_something_less_urgent_was_sent_ahead() -> None:
    places = Places()
    places.send_ahead(task("t", priority=2), 5.0)
    assert (places.ahead_below(3), places.ahead_below(2)) == (True, False)
    places.leave_ahead("t")
    assert not places.ahead_below(3)

"""One simulated cluster by hand: what is asked of it at odd moments is answered exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DispatchAccepted,
    DispatchRefused,
    LinkFailed,
    PlaceMoved,
    SnapshotFailed,
    Started,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Dispatch
from ray_multicluster_scheduler.simulation import OthersLoad, Synthetic, Workload
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Attempt, SimulatedItem
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_link import SimulatedLink
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import VirtualClock, random_stream
from tests.unit.lifecycle.driver import job, task
from tests.unit.simulation.simulated_runs import Story, exact, fleet, item


class Bench:
    """A cluster of one CPU, its clock, and what it says."""

    def __init__(self, **values: Any) -> None:
        self.clock = VirtualClock()
        self.heard: list[tuple[float, Any]] = []
        spec = exact("a", "{CPU:1}", **{"latency_s": 0.5, "agent_start_s": 3.0, **values})
        self.link = SimulatedLink(spec, Settings(), self.clock, lambda what: random_stream(0, what), self._post, self)
        self.ends: list[tuple[float, str, str]] = []

    def _post(self, at: float, event: Any) -> None:
        self.clock.at(at, lambda one: self.heard.append((self.clock.now, one)), event)

    def attempt_began(self, cluster: str, attempt: Attempt) -> None: ...

    def nodes_changed(self, cluster: str, allocation: object) -> None: ...

    def fault_injected(self, what: str) -> None: ...

    def attempt_ended(self, cluster: str, attempt: Attempt, how: str) -> None:
        self.ends.append((self.clock.now, attempt.dispatch.task_id, how))

    def send(self, task_id: str, run_s: float = 10.0, *, ahead: Any = "", kind: str = "task") -> None:
        made = job(task_id, 1) if kind == "job" else task(task_id, 1)
        self.link.dispatch(Attempt(Dispatch(task_id, 1, 1, "a", ahead), SimulatedItem(made, run_s)))

    def at(self, when: float, handler: Any) -> None:
        self.clock.at(when, lambda _: handler())

    def said(self, *kinds: type[Any]) -> list[tuple[float, str]]:
        """When, and about which item or by which word."""
        found = [(at, one) for at, one in self.heard if isinstance(one, kinds)]
        return [(at, getattr(one, "task_id", type(one).__name__)) for at, one in found]

    def ends_told(self) -> list[tuple[float, str, str]]:
        return [(at, one.task_id, one.status) for at, one in self.heard if isinstance(one, AttemptFinished)]


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.link.announce()
    return made


class TestCancel:
    def test_what_runs(self, bench: Bench) -> None:
        bench.send("t")
        bench.at(4, lambda: bench.link.cancel(("t", 1)))
        bench.clock.run()
        assert bench.ends == [(4.5, "t", "cancelled")]
        assert bench.ends_told() == [(5, "t", "cancelled")]

    def test_what_is_over_says_nothing_more(self, bench: Bench) -> None:
        bench.send("t", 1)
        bench.at(4, lambda: bench.link.cancel(("t", 1)))
        bench.clock.run()
        assert bench.ends_told() == [(2, "t", "succeeded")]

    def test_what_waits_for_its_link_never_left(self) -> None:
        bench = Bench()
        bench.send("t")
        bench.send("u", 1)
        bench.at(1, lambda: bench.link.cancel(("t", 1)))
        bench.clock.run()
        assert bench.ends_told() == [(1, "t", "cancelled"), (5, "u", "succeeded")]
        assert bench.ends == [(4.5, "u", "succeeded")]

    def test_in_the_silence_it_is_said_when_somebody_hears_it(self, bench: Bench) -> None:
        bench.send("t", 100)
        bench.at(5, bench.link.cut)
        bench.at(6, lambda: bench.link.cancel(("t", 1)))
        bench.at(20, bench.link.end_cut)
        bench.clock.run()
        assert bench.ends == [(21, "t", "cancelled")]
        assert bench.ends_told() == [(21.5, "t", "cancelled")]

    def test_of_a_cluster_that_is_lost_it_is_cancelled(self, bench: Bench) -> None:
        """Nobody tries again what nobody wants."""
        bench.send("t", 100)
        bench.at(5, bench.link.cut)
        bench.at(6, lambda: bench.link.cancel(("t", 1)))
        bench.clock.run()
        assert bench.ends_told() == [(65, "t", "cancelled")]

    def test_a_job(self, bench: Bench) -> None:
        bench.send("t", 200, kind="job")
        bench.at(5, bench.link.cut)
        bench.at(6, lambda: bench.link.cancel(("t", 1)))
        bench.at(100, bench.link.end_cut)
        bench.clock.run()
        assert bench.ends == [(101, "t", "cancelled")]  # nothing else ends it: a job has no lease
        assert bench.ends_told() == [(101.5, "t", "cancelled")]


class TestAhead:
    def test_who_waits_gets_the_place(self, bench: Bench) -> None:
        bench.send("t", 10)
        bench.send("u", 10, ahead="queue")
        bench.clock.run()
        assert bench.said(PlaceMoved, AttemptFinished)[:2] == [(11, "PlaceMoved"), (11, "t")]
        assert bench.ends[-1] == (20.5, "u", "succeeded")

    def test_who_is_told_to_starts(self, bench: Bench) -> None:
        bench.send("u", 10, ahead="queue")
        bench.at(5, lambda: bench.link.start(("u", 1)))
        bench.clock.run()
        assert bench.said(Started) == [(6, "u")]

    def test_who_has_not_begun_is_taken_back(self, bench: Bench) -> None:
        bench.send("t", 10)
        bench.send("u", 10, ahead="queue")
        bench.at(5, lambda: bench.link.recall(("u", 1)))
        bench.at(5, lambda: bench.link.recall(("t", 1)))
        bench.clock.run()
        assert bench.ends_told() == [(6, "u", "cancelled"), (11, "t", "succeeded")]
        assert bench.link.cluster.recalled == 1


class TestOddMoments:
    def test_one_on_its_way_when_the_link_is_cut_arrives_when_it_is_back(self, bench: Bench) -> None:
        bench.at(5, lambda: bench.send("t", 10))
        bench.at(5.2, bench.link.cut)
        bench.at(20, bench.link.end_cut)
        bench.clock.run()
        assert bench.said(DispatchAccepted) == [(21.5, "t")]
        assert bench.ends == [(31, "t", "succeeded")]

    def test_one_that_is_not_wanted_any_more_when_the_link_is_back(self, bench: Bench) -> None:
        bench.at(5, bench.link.cut)
        bench.at(6, lambda: bench.send("t", 10))
        bench.at(7, lambda: bench.link.cancel(("t", 1)))
        bench.at(20, bench.link.end_cut)
        bench.clock.run()
        assert bench.ends_told() == [(21.5, "t", "cancelled")]
        assert bench.ends == []  # it never got there

    def test_one_that_was_long_on_its_way_begins_once(self) -> None:
        bench = Bench(latency_s=10.0)
        bench.link.announce()
        bench.at(5, lambda: bench.send("t", 100))
        bench.at(6, bench.link.cut)
        bench.at(7, bench.link.end_cut)
        bench.clock.run()
        assert bench.ends == [(108, "t", "succeeded")]
        assert len(bench.ends_told()) == 1

    def test_a_job_for_a_cluster_that_does_not_answer(self, bench: Bench) -> None:
        bench.link.cut()
        bench.send("t", kind="job")
        bench.clock.run()
        assert bench.said(DispatchRefused) == [(5, "t")]

    def test_a_link_that_cannot_be_made(self) -> None:
        bench = Bench()
        bench.link.kill()
        bench.send("t")
        bench.clock.run()
        assert bench.said(LinkFailed, DispatchRefused) == [(3, "LinkFailed"), (3, "t")]

    def test_a_question_that_the_cut_overtakes(self, bench: Bench) -> None:
        bench.at(5, bench.link.refresh)
        bench.at(5.2, bench.link.cut)
        bench.clock.run()
        assert bench.said(SnapshotFailed) == [(5.5, "SnapshotFailed")]

    def test_two_cuts_at_once_end_with_the_later_one(self, bench: Bench) -> None:
        bench.send("t", 8)
        for at, handler in (
            (5, bench.link.cut),
            (7, bench.link.cut),
            (10, bench.link.end_cut),
            (20, bench.link.end_cut),
        ):
            bench.at(at, handler)
        bench.clock.run()
        assert bench.ends_told() == [(21.5, "t", "succeeded")]

    def test_dead_and_cut_it_is_known_to_be_another_when_both_are_over(self, bench: Bench) -> None:
        bench.send("t", 100)
        for at, handler in (
            (5, bench.link.kill),
            (6, bench.link.cut),
            (8, bench.link.restart),
            (12, bench.link.end_cut),
        ):
            bench.at(at, handler)
        bench.clock.run()
        assert bench.ends == [(5, "t", "died")]
        [(at, end)] = [(at, one) for at, one in bench.heard if isinstance(one, AttemptFinished)]
        assert (at, end.code) == (13, "CLUSTER_RESTARTED")

    def test_it_dies_once(self, bench: Bench) -> None:
        bench.send("t", 100)
        for at, handler in (
            (5, bench.link.kill),
            (6, bench.link.kill),
            (10, bench.link.restart),
            (20, bench.link.restart),
        ):
            bench.at(at, handler)
        bench.clock.run()
        assert bench.link.session == 2


def test_what_finds_no_room_is_called_back_in_time() -> None:
    """Others take all of it at 1, of which no snapshot tells; from 100 on there is room again."""
    load = OthersLoad(steps=((1, 1.0), (100, 0.0)))
    where = fleet(exact("a", "{CPU:1}", others=load, snapshot_every_s=1000.0))
    story = Story(where, item(2, 1, 10))
    assert story.told(CancelAttempt)[0][0] == 62
    assert story.figures["items"]["succeeded"] == 1
    assert story.began()[0][0] >= 100


def test_a_member_of_chance_does_not_disturb_another() -> None:
    """Crashes on one cluster are the same whatever the other one does."""
    work = Workload(Synthetic.parse("items=50 over=1min run=constant:60 sizes=1 require=x:1").generate(1))
    a = exact("a", "100x{CPU:1}", tags=("x",), crashes_per_hour=20.0)
    alone = Story(fleet(a), *work, seed=1).ended()
    beside = Story(fleet(a, exact("b", "{CPU:1}", crashes_per_hour=3.0, snapshot_loss=0.5)), *work, seed=1).ended()
    assert alone == beside

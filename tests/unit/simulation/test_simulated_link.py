"""One simulated link driven by hand: every order, also during a fault, is answered exactly once."""

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
from tests.unit.simulation.simulated_runs import SimulatedRun, exact, fleet, item


class LinkHarness:
    """A link to a cluster of one CPU, its clock, and the events it posted."""

    def __init__(self, **values: Any) -> None:
        self.clock = VirtualClock()
        self.received: list[tuple[float, Any]] = []
        spec = exact("a", "{CPU:1}", **{"latency_s": 0.5, "agent_start_s": 3.0, **values})
        self.link = SimulatedLink(spec, Settings(), self.clock, lambda what: random_stream(0, what), self._post, self)
        self.ends: list[tuple[float, str, str]] = []

    def _post(self, at: float, event: Any) -> None:
        self.clock.at(at, lambda one: self.received.append((self.clock.now, one)), event)

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

    def schedule(self, *calls: tuple[float, Any]) -> None:
        """Call each handler at its time."""
        for when, handler in calls:
            self.at(when, handler)

    def output(self, *kinds: type[Any]) -> list[tuple[float, str]]:
        """Time and item id, or type, of the events of these kinds."""
        found = [(at, one) for at, one in self.received if isinstance(one, kinds)]
        return [(at, getattr(one, "task_id", type(one).__name__)) for at, one in found]

    def reported_ends(self) -> list[tuple[float, str, str]]:
        return [(at, one.task_id, one.status) for at, one in self.received if isinstance(one, AttemptFinished)]


@pytest.fixture
def harness() -> LinkHarness:
    made = LinkHarness()
    made.link.link_up()
    return made


class TestCancel:
    def test_a_running_attempt(self, harness: LinkHarness) -> None:
        harness.send("t")
        harness.at(4, lambda: harness.link.cancel(("t", 1)))
        harness.clock.run()
        assert harness.ends == [(4.5, "t", "cancelled")]
        assert harness.reported_ends() == [(5, "t", "cancelled")]

    def test_an_ended_attempt_is_not_reported_again(self, harness: LinkHarness) -> None:
        harness.send("t", 1)
        harness.at(4, lambda: harness.link.cancel(("t", 1)))
        harness.clock.run()
        assert harness.reported_ends() == [(2, "t", "succeeded")]

    def test_an_attempt_that_waits_for_the_link(self) -> None:
        harness = LinkHarness()
        harness.send("t")
        harness.send("u", 1)
        harness.at(1, lambda: harness.link.cancel(("t", 1)))
        harness.clock.run()
        assert harness.reported_ends() == [(1, "t", "cancelled"), (5, "u", "succeeded")]
        assert harness.ends == [(4.5, "u", "succeeded")]

    def test_during_a_cut_it_is_delivered_when_contact_is_regained(self, harness: LinkHarness) -> None:
        harness.send("t", 100)
        harness.at(5, harness.link.cut)
        harness.at(6, lambda: harness.link.cancel(("t", 1)))
        harness.at(20, harness.link.end_cut)
        harness.clock.run()
        assert harness.ends == [(21, "t", "cancelled")]
        assert harness.reported_ends() == [(21.5, "t", "cancelled")]

    def test_on_a_lost_cluster_it_becomes_cancelled(self, harness: LinkHarness) -> None:
        """A cancelled item is not retried."""
        harness.send("t", 100)
        harness.at(5, harness.link.cut)
        harness.at(6, lambda: harness.link.cancel(("t", 1)))
        harness.clock.run()
        assert harness.reported_ends() == [(65, "t", "cancelled")]

    def test_a_job(self, harness: LinkHarness) -> None:
        harness.send("t", 200, kind="job")
        harness.at(5, harness.link.cut)
        harness.at(6, lambda: harness.link.cancel(("t", 1)))
        harness.at(100, harness.link.end_cut)
        harness.clock.run()
        assert harness.ends == [(101, "t", "cancelled")]  # nothing else ends it: a job has no lease
        assert harness.reported_ends() == [(101.5, "t", "cancelled")]


class TestSentAhead:
    def test_a_waiting_attempt_inherits_the_slot(self, harness: LinkHarness) -> None:
        harness.send("t", 10)
        harness.send("u", 10, ahead="queue")
        harness.clock.run()
        assert harness.output(PlaceMoved, AttemptFinished)[:2] == [(11, "PlaceMoved"), (11, "t")]
        assert harness.ends[-1] == (20.5, "u", "succeeded")

    def test_a_start_order_gives_a_slot(self, harness: LinkHarness) -> None:
        harness.send("u", 10, ahead="queue")
        harness.at(5, lambda: harness.link.start(("u", 1)))
        harness.clock.run()
        assert harness.output(Started) == [(6, "u")]

    def test_an_attempt_without_slot_is_recalled(self, harness: LinkHarness) -> None:
        harness.send("t", 10)
        harness.send("u", 10, ahead="queue")
        harness.at(5, lambda: harness.link.recall(("u", 1)))
        harness.at(5, lambda: harness.link.recall(("t", 1)))
        harness.clock.run()
        assert harness.reported_ends() == [(6, "u", "cancelled"), (11, "t", "succeeded")]
        assert harness.link.cluster.recalled == 1


class TestOddMoments:
    def test_a_dispatch_in_flight_at_a_cut_arrives_after_it(self, harness: LinkHarness) -> None:
        harness.at(5, lambda: harness.send("t", 10))
        harness.at(5.2, harness.link.cut)
        harness.at(20, harness.link.end_cut)
        harness.clock.run()
        assert harness.output(DispatchAccepted) == [(21.5, "t")]
        assert harness.ends == [(31, "t", "succeeded")]

    def test_a_dispatch_cancelled_during_a_cut_never_arrives(self, harness: LinkHarness) -> None:
        harness.at(5, harness.link.cut)
        harness.at(6, lambda: harness.send("t", 10))
        harness.at(7, lambda: harness.link.cancel(("t", 1)))
        harness.at(20, harness.link.end_cut)
        harness.clock.run()
        assert harness.reported_ends() == [(21.5, "t", "cancelled")]
        assert harness.ends == []  # it never arrived

    def test_a_slow_dispatch_begins_once(self) -> None:
        harness = LinkHarness(latency_s=10.0)
        harness.link.link_up()
        harness.at(5, lambda: harness.send("t", 100))
        harness.at(6, harness.link.cut)
        harness.at(7, harness.link.end_cut)
        harness.clock.run()
        assert harness.ends == [(108, "t", "succeeded")]
        assert len(harness.reported_ends()) == 1

    def test_a_job_for_a_cluster_that_does_not_answer(self, harness: LinkHarness) -> None:
        harness.link.cut()
        harness.send("t", kind="job")
        harness.clock.run()
        assert harness.output(DispatchRefused) == [(5, "t")]

    def test_an_agent_that_cannot_be_started(self) -> None:
        harness = LinkHarness()
        harness.link.kill()
        harness.send("t")
        harness.clock.run()
        assert harness.output(LinkFailed, DispatchRefused) == [(3, "LinkFailed"), (3, "t")]

    def test_a_cut_during_a_refresh(self, harness: LinkHarness) -> None:
        harness.at(5, harness.link.refresh)
        harness.at(5.2, harness.link.cut)
        harness.clock.run()
        assert harness.output(SnapshotFailed) == [(5.5, "SnapshotFailed")]

    def test_two_cuts_at_once_end_with_the_later_one(self, harness: LinkHarness) -> None:
        harness.send("t", 8)
        harness.schedule(
            (5, harness.link.cut),
            (7, harness.link.cut),
            (10, harness.link.end_cut),
            (20, harness.link.end_cut),
        )
        harness.clock.run()
        assert harness.reported_ends() == [(21.5, "t", "succeeded")]

    def test_a_restart_during_a_cut_is_noticed_after_both(self, harness: LinkHarness) -> None:
        harness.send("t", 100)
        harness.schedule(
            (5, harness.link.kill),
            (6, harness.link.cut),
            (8, harness.link.restart),
            (12, harness.link.end_cut),
        )
        harness.clock.run()
        assert harness.ends == [(5, "t", "died")]
        [(at, end)] = [(at, one) for at, one in harness.received if isinstance(one, AttemptFinished)]
        assert (at, end.code) == (13, "CLUSTER_RESTARTED")

    def test_a_dead_cluster_cannot_die_again(self, harness: LinkHarness) -> None:
        harness.send("t", 100)
        harness.schedule(
            (5, harness.link.kill),
            (6, harness.link.kill),
            (10, harness.link.restart),
            (20, harness.link.restart),
        )
        harness.clock.run()
        assert harness.link.session == 2


def test_an_attempt_that_does_not_start_is_recalled() -> None:
    """Others take all of it at 1, of which no snapshot tells; from 100 on there is room again."""
    load = OthersLoad(steps=((1, 1.0), (100, 0.0)))
    where = fleet(exact("a", "{CPU:1}", others=load, snapshot_every_s=1000.0))
    run = SimulatedRun(where, item(2, 1, 10))
    assert run.instructions(CancelAttempt)[0][0] == 62
    assert run.figures["items"]["succeeded"] == 1
    assert run.began()[0][0] >= 100


def test_random_streams_are_independent() -> None:
    """Crashes on one cluster are the same whatever the other one does."""
    work = Workload(Synthetic.parse("items=50 over=1min run=constant:60 sizes=1 require=x:1").generate(1))
    a = exact("a", "100x{CPU:1}", tags=("x",), crashes_per_hour=20.0)
    alone = SimulatedRun(fleet(a), *work, seed=1).ended()
    beside = SimulatedRun(
        fleet(a, exact("b", "{CPU:1}", crashes_per_hour=3.0, snapshot_loss=0.5)), *work, seed=1
    ).ended()
    assert alone == beside

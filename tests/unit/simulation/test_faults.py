"""Cuts, dead clusters and crashes: exact times, and no item is lost or runs twice."""

from __future__ import annotations

from collections import Counter

import pytest

from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    LinkClosed,
    LinkDown,
    LinkFailed,
    LinkUp,
    SnapshotFailed,
)
from ray_multicluster_scheduler.simulation import PlannedFault
from tests.unit.simulation.simulated_runs import SimulatedRun, exact, fleet, item

STILL = {"retry_backoff": {"jitter": 0}}
"""A back-off of exactly one second, then two."""


class TestCutLink:
    """Cluster a is cut at 5. Heartbeats come every 5 s, the lease is 45 s, it is lost after 60 s."""

    def test_a_short_cut_delays_only_the_report(self) -> None:
        """Over at 10, reported when the link is back a second after the cut ends."""
        fault = PlannedFault(5, "a", "cut", 8)
        run = SimulatedRun(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 5.5))
        assert run.ended() == [(5.5, "t0", "succeeded")]
        assert [at for at, _ in run.events(AttemptFinished)] == [14]
        assert run.events(LinkDown) == []

    def test_after_three_heartbeats_the_link_is_down(self) -> None:
        fault = PlannedFault(5, "a", "cut", 30)
        run = SimulatedRun(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 100))
        assert [at for at, _ in run.events(LinkDown)] == [20]
        assert [at for at, _ in run.events(LinkUp)] == [0, 36]
        assert run.ended() == [(100, "t0", "succeeded")]  # it never noticed

    def test_a_long_cut_ends_the_attempt_by_its_lease_and_retries_elsewhere(self) -> None:
        fault = PlannedFault(5, "a", "cut", 1000)
        where = fleet(exact("a", "{CPU:2}"), exact("b", "{CPU:1}"), faults=(fault,), **STILL)
        run = SimulatedRun(where, item(0, 1, 100))
        assert run.began() == [(0, "t0", "a", 1), (66, "t0", "b", 2)]
        assert run.ended() == [(50, "t0", "lease"), (166, "t0", "succeeded")]
        assert [at for at, _ in run.events(LinkClosed)] == [65]
        assert run.figures["failures"]["items_survived"] == 1

    def test_a_cut_that_ends_between_lease_and_loss_closes_the_link(self) -> None:
        fault = PlannedFault(5, "a", "cut", 50)
        run = SimulatedRun(fleet(exact("a", "{CPU:1}"), faults=(fault,), **STILL), item(0, 1, 100))
        assert [at for at, _ in run.events(LinkClosed)] == [56]
        # It was asked in vain five times, so it is left alone for breaker_recovery_s before it gets work again.
        assert run.ended() == [(50, "t0", "lease"), (205, "t0", "succeeded")]

    def test_a_job_has_no_lease(self) -> None:
        fault = PlannedFault(5, "a", "cut", 200)
        run = SimulatedRun(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 100, kind="job"))
        assert run.ended() == [(100, "t0", "succeeded")]
        assert [at for at, _ in run.events(AttemptFinished)] == [206]

    def test_the_end_of_a_job_is_seen_after_the_agent_ended(self) -> None:
        """The lease is over at 50, the job at 53, the cut at 55: who asks a second later learns it."""
        fault = PlannedFault(5, "a", "cut", 50)
        where = fleet(exact("a", "{CPU:2}"), faults=(fault,), **STILL)
        run = SimulatedRun(where, item(0, 1, 53, kind="job"), item(0, 1, 100))
        assert [(at, one.task_id) for at, one in run.events(AttemptFinished)][:2] == [(56, "t1"), (56, "t0")]
        assert run.figures["items"]["succeeded"] == 2

    def test_items_submitted_during_a_cut_wait_or_go_elsewhere(self) -> None:
        """While it is not yet suspect it is still sent there, into the silence, and begins when the link is back."""
        fault = PlannedFault(5, "a", "cut", 30)
        run = SimulatedRun(
            fleet(exact("a", "{CPU:2}"), faults=(fault,)), item(0, 1, 100), item(7, 1, 10), item(25, 1, 10)
        )
        began = {task: at for at, task, _, _ in run.began()}
        assert began["t1"] == 36
        assert began["t2"] >= 36
        assert all(end == "succeeded" for _, _, end in run.ended())

    def test_no_new_link_during_a_cut(self) -> None:
        """Lost at 65; asked in vain from then on, and linked anew after the end at 305."""
        fault = PlannedFault(5, "a", "cut", 300)
        run = SimulatedRun(fleet(exact("a", "{CPU:1}"), faults=(fault,), **STILL), item(0, 1, 10), item(100, 1, 10))
        assert all(at > 305 for at, *_ in run.began()[1:])
        assert run.events(SnapshotFailed)
        assert run.figures["items"]["succeeded"] == 2

    def test_a_cut_while_the_agent_starts(self) -> None:
        """The first link is gone, nothing needs another before 300."""
        faults = (PlannedFault(15, "a", "dies", 70), PlannedFault(302, "a", "cut", 20))
        where = fleet(exact("a", "{CPU:1}", agent_start_s=5.0), faults=faults, **STILL)
        run = SimulatedRun(where, item(0, 1, 10), item(300, 1, 10))
        assert [at for at, _ in run.events(LinkFailed)] == [305]
        assert run.figures["items"]["succeeded"] == 2


class TestDeadCluster:
    def test_a_dead_cluster_returns_as_a_new_session(self) -> None:
        """Dead at 5, back at 15, known a second later; the back-off is one second."""
        fault = PlannedFault(5, "a", "dies", 10)
        run = SimulatedRun(fleet(exact("a", "{CPU:1}"), faults=(fault,), **STILL), item(0, 1, 100))
        assert run.ended()[0] == (5, "t0", "died")
        [(at, end), _] = run.events(AttemptFinished)
        assert (at, end.code) == (16, "CLUSTER_RESTARTED")
        assert run.began()[1][0] >= 17
        assert {one.session_id for _, one in run.events(LinkUp)} == {"a-session-1", "a-session-2"}
        assert run.faults() == [(5, "a: dies for 10 s")]
        assert run.nodes() == [(0, "a", 1), (5, "a", 0), (15, "a", 1)]

    def test_items_of_a_lost_cluster_go_elsewhere(self) -> None:
        where = fleet(exact("a", "{CPU:2}"), exact("b", "{CPU:1}"), faults=(PlannedFault(5, "a", "dies"),), **STILL)
        run = SimulatedRun(where, item(0, 1, 100), item(0, 1, 100))
        assert Counter(run.figures["failures"])["died_with_cluster"] == 1
        assert run.figures["items"]["succeeded"] == 2
        assert run.began()[-1][2] == "b"

    def test_a_job_that_died_with_its_cluster_fails_when_it_returns(self) -> None:
        """Nobody may repeat a job that may have run."""
        fault = PlannedFault(5, "a", "dies", 10)
        run = SimulatedRun(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 100, kind="job"))
        assert run.figures["items"]["failed"] == 1

    def test_downtime_does_not_count_as_capacity(self) -> None:
        """One CPU for 100 s, of which 50 s were there and 40 s used."""
        fault = PlannedFault(50, "a", "dies")
        where = fleet(exact("a", "{CPU:1}"), exact("b", "{CPU:1}@0.5"), faults=(fault,))
        run = SimulatedRun(where, item(0, 1, 40), item(0, 1, 50))
        assert run.result.makespan_s == 100
        assert run.figures["clusters"]["a"]["use"] == {"CPU": 0.8}


class TestNodesAndWorkers:
    def test_attempts_on_a_dead_node_crash(self) -> None:
        fault = PlannedFault(5, "a", "node_dies", 20, node=1)
        where = fleet(exact("a", "2x{CPU:1}", snapshot_every_s=1.0), faults=(fault,), **STILL)
        run = SimulatedRun(where, item(0, 1, 10), item(0, 1, 10))
        assert run.ended()[:2] == [(5, "t0", "crashed"), (10, "t1", "succeeded")]
        assert run.began()[-1] == (10, "t0", "a", 2)  # on the other node, when that is free
        assert run.figures["failures"]["items_survived"] == 1

    def test_workers_crash_at_the_given_rate(self) -> None:
        """An hour's work dies with chance 1 - 1/e; each of 300 items may be tried four times."""
        where = fleet(exact("a", "300x{CPU:1}", crashes_per_hour=1.0), **STILL)
        run = SimulatedRun(where, *(item(0, 1, 3600) for _ in range(300)), seed=7)
        first = [how for _, task, how in run.ended()]
        assert first.count("crashed") == run.figures["failures"]["crashed"]
        died_at_once = sum(attempt == 2 for *_, attempt in run.began()) / 300
        assert died_at_once == pytest.approx(0.632, abs=0.08)
        assert run.figures["failures"]["items_survived"] > 100

    def test_too_many_crashes_fail_the_item(self) -> None:
        run = SimulatedRun(fleet(exact("a", "{CPU:1}", crashes_per_hour=1e6), **STILL), item(0, 1, 3600))
        assert run.figures["items"]["failed"] == 1
        assert run.figures["failures"]["crashed"] == 4


def test_no_item_ever_runs_twice_at_once() -> None:
    """Whatever happens to the clusters: what begins was over before."""
    faults = (
        PlannedFault(30, "a", "cut", 100),
        PlannedFault(60, "b", "dies", 45),
        PlannedFault(80, "a", "dies", 30),
        PlannedFault(200, "c", "node_dies", 60),
        PlannedFault(210, "c", "cut", 5),
    )
    clusters = [exact(name, "2x{CPU:4}", latency_s=0.1, crashes_per_hour=20.0) for name in "abc"]
    items = [item(number * 2.0, 1 + number % 3, 15 + number % 40, kind=_kind(number)) for number in range(150)]
    run = SimulatedRun(fleet(*clusters, faults=faults), *items, seed=3)
    alive: set[str] = set()
    events = sorted([(at, 1, task) for at, task, *_ in run.began()] + [(at, 0, task) for at, task, _ in run.ended()])
    for _, begins, task in events:
        assert (task in alive) != bool(begins)
        (alive.add if begins else alive.remove)(task)
    assert not alive
    assert run.figures["items"]["unfinished"] == 0
    assert run.figures["items"]["succeeded"] > 120


def _kind(number: int) -> str:
    return "job" if number % 10 == 0 else "gang" if number % 10 == 1 else "task"

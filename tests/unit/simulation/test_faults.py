"""Cuts, deaths, crashes: exact times, and that nothing is lost or runs twice."""

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
from tests.unit.simulation.simulated_runs import Story, exact, fleet, item

STILL = {"retry_backoff": {"jitter": 0}}
"""A back-off of exactly one second, then two."""


class TestACutLink:
    """Cluster a is cut at 5. Heartbeats come every 5 s, the lease is 45 s, it is lost after 60 s."""

    def test_a_short_one_is_hardly_noticed(self) -> None:
        """Over at 10, told when the link is back a second after the cut ends."""
        fault = PlannedFault(5, "a", "cut", 8)
        story = Story(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 5.5))
        assert story.ended() == [(5.5, "t0", "succeeded")]
        assert [at for at, _ in story.fed(AttemptFinished)] == [14]
        assert story.fed(LinkDown) == []

    def test_after_three_heartbeats_it_is_suspect(self) -> None:
        fault = PlannedFault(5, "a", "cut", 30)
        story = Story(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 100))
        assert [at for at, _ in story.fed(LinkDown)] == [20]
        assert [at for at, _ in story.fed(LinkUp)] == [0, 36]
        assert story.ended() == [(100, "t0", "succeeded")]  # it never noticed

    def test_a_long_one_ends_by_the_lease_and_goes_elsewhere(self) -> None:
        fault = PlannedFault(5, "a", "cut", 1000)
        where = fleet(exact("a", "{CPU:2}"), exact("b", "{CPU:1}"), faults=(fault,), **STILL)
        story = Story(where, item(0, 1, 100))
        assert story.began() == [(0, "t0", "a", 1), (66, "t0", "b", 2)]
        assert story.ended() == [(50, "t0", "lease"), (166, "t0", "succeeded")]
        assert [at for at, _ in story.fed(LinkClosed)] == [65]
        assert story.figures["failures"]["items_survived"] == 1

    def test_back_between_lease_and_loss_the_agent_is_known_to_be_gone(self) -> None:
        fault = PlannedFault(5, "a", "cut", 50)
        story = Story(fleet(exact("a", "{CPU:1}"), faults=(fault,), **STILL), item(0, 1, 100))
        assert [at for at, _ in story.fed(LinkClosed)] == [56]
        # It was asked in vain five times, so it is left alone for breaker_recovery_s before it gets work again.
        assert story.ended() == [(50, "t0", "lease"), (205, "t0", "succeeded")]

    def test_a_job_has_no_lease(self) -> None:
        fault = PlannedFault(5, "a", "cut", 200)
        story = Story(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 100, kind="job"))
        assert story.ended() == [(100, "t0", "succeeded")]
        assert [at for at, _ in story.fed(AttemptFinished)] == [206]

    def test_the_end_of_a_job_is_heard_although_the_agent_is_gone(self) -> None:
        """The lease is over at 50, the job at 53, the cut at 55: who asks a second later is told."""
        fault = PlannedFault(5, "a", "cut", 50)
        where = fleet(exact("a", "{CPU:2}"), faults=(fault,), **STILL)
        story = Story(where, item(0, 1, 53, kind="job"), item(0, 1, 100))
        assert [(at, one.task_id) for at, one in story.fed(AttemptFinished)][:2] == [(56, "t1"), (56, "t0")]
        assert story.figures["items"]["succeeded"] == 2

    def test_what_comes_meanwhile_waits_or_goes_elsewhere(self) -> None:
        """While it is not yet suspect it is still sent there, into the silence, and begins when the link is back."""
        fault = PlannedFault(5, "a", "cut", 30)
        story = Story(fleet(exact("a", "{CPU:2}"), faults=(fault,)), item(0, 1, 100), item(7, 1, 10), item(25, 1, 10))
        began = {task: at for at, task, _, _ in story.began()}
        assert began["t1"] == 36
        assert began["t2"] >= 36
        assert all(end == "succeeded" for _, _, end in story.ended())

    def test_new_links_cannot_be_made_meanwhile(self) -> None:
        """Lost at 65; asked in vain from then on, and linked anew after the end at 305."""
        fault = PlannedFault(5, "a", "cut", 300)
        story = Story(fleet(exact("a", "{CPU:1}"), faults=(fault,), **STILL), item(0, 1, 10), item(100, 1, 10))
        assert all(at > 305 for at, *_ in story.began()[1:])
        assert story.fed(SnapshotFailed)
        assert story.figures["items"]["succeeded"] == 2

    def test_one_that_is_cut_while_its_link_is_made(self) -> None:
        """The first link is gone, nothing needs another before 300."""
        faults = (PlannedFault(15, "a", "dies", 70), PlannedFault(302, "a", "cut", 20))
        where = fleet(exact("a", "{CPU:1}", agent_start_s=5.0), faults=faults, **STILL)
        story = Story(where, item(0, 1, 10), item(300, 1, 10))
        assert [at for at, _ in story.fed(LinkFailed)] == [305]
        assert story.figures["items"]["succeeded"] == 2


class TestADeadCluster:
    def test_it_comes_back_as_another_session(self) -> None:
        """Dead at 5, back at 15, known a second later; the back-off is one second."""
        fault = PlannedFault(5, "a", "dies", 10)
        story = Story(fleet(exact("a", "{CPU:1}"), faults=(fault,), **STILL), item(0, 1, 100))
        assert story.ended()[0] == (5, "t0", "died")
        [(at, end), _] = story.fed(AttemptFinished)
        assert (at, end.code) == (16, "CLUSTER_RESTARTED")
        assert story.began()[1][0] >= 17
        assert {one.session_id for _, one in story.fed(LinkUp)} == {"a-session-1", "a-session-2"}
        assert story.faults() == [(5, "a: dies for 10 s")]
        assert story.nodes() == [(0, "a", 1), (5, "a", 0), (15, "a", 1)]

    def test_its_work_goes_elsewhere_when_it_is_lost(self) -> None:
        where = fleet(exact("a", "{CPU:2}"), exact("b", "{CPU:1}"), faults=(PlannedFault(5, "a", "dies"),), **STILL)
        story = Story(where, item(0, 1, 100), item(0, 1, 100))
        assert Counter(story.figures["failures"])["died_with_cluster"] == 1
        assert story.figures["items"]["succeeded"] == 2
        assert story.began()[-1][2] == "b"

    def test_a_job_that_died_with_it_fails_when_it_is_back(self) -> None:
        """Nobody may repeat a job that may have run."""
        fault = PlannedFault(5, "a", "dies", 10)
        story = Story(fleet(exact("a", "{CPU:1}"), faults=(fault,)), item(0, 1, 100, kind="job"))
        assert story.figures["items"]["failed"] == 1

    def test_its_time_away_is_no_capacity(self) -> None:
        """One CPU for 100 s, of which 50 s were there and 40 s used."""
        fault = PlannedFault(50, "a", "dies")
        where = fleet(exact("a", "{CPU:1}"), exact("b", "{CPU:1}@0.5"), faults=(fault,))
        story = Story(where, item(0, 1, 40), item(0, 1, 50))
        assert story.result.makespan_s == 100
        assert story.figures["clusters"]["a"]["use"] == {"CPU": 0.8}


class TestNodesAndWorkers:
    def test_what_ran_on_a_dead_node_crashed(self) -> None:
        fault = PlannedFault(5, "a", "node_dies", 20, node=1)
        where = fleet(exact("a", "2x{CPU:1}", snapshot_every_s=1.0), faults=(fault,), **STILL)
        story = Story(where, item(0, 1, 10), item(0, 1, 10))
        assert story.ended()[:2] == [(5, "t0", "crashed"), (10, "t1", "succeeded")]
        assert story.began()[-1] == (10, "t0", "a", 2)  # on the other node, when that is free
        assert story.figures["failures"]["items_survived"] == 1

    def test_workers_crash_at_the_given_rate(self) -> None:
        """An hour's work dies with chance 1 - 1/e; each of 300 items may be tried four times."""
        where = fleet(exact("a", "300x{CPU:1}", crashes_per_hour=1.0), **STILL)
        story = Story(where, *(item(0, 1, 3600) for _ in range(300)), seed=7)
        first = [how for _, task, how in story.ended()]
        assert first.count("crashed") == story.figures["failures"]["crashed"]
        died_at_once = sum(attempt == 2 for *_, attempt in story.began()) / 300
        assert died_at_once == pytest.approx(0.632, abs=0.08)
        assert story.figures["failures"]["items_survived"] > 100

    def test_too_many_crashes_are_its_end(self) -> None:
        story = Story(fleet(exact("a", "{CPU:1}", crashes_per_hour=1e6), **STILL), item(0, 1, 3600))
        assert story.figures["items"]["failed"] == 1
        assert story.figures["failures"]["crashed"] == 4


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
    story = Story(fleet(*clusters, faults=faults), *items, seed=3)
    alive: set[str] = set()
    events = sorted(
        [(at, 1, task) for at, task, *_ in story.began()] + [(at, 0, task) for at, task, _ in story.ended()]
    )
    for _, begins, task in events:
        assert (task in alive) != bool(begins)
        (alive.add if begins else alive.remove)(task)
    assert not alive
    assert story.figures["items"]["unfinished"] == 0
    assert story.figures["items"]["succeeded"] > 120


def _kind(number: int) -> str:
    return "job" if number % 10 == 0 else "gang" if number % 10 == 1 else "task"

"""Runs that can be computed by hand: exact times, places and waits."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model.item_fields import Kind
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, SnapshotTaken, Started, Submitted
from ray_multicluster_scheduler.simulation import OthersLoad
from tests.unit.simulation.simulated_runs import SimulatedRun, exact, fleet, item


class TestTwoClusters:
    """Cluster a has two CPUs, cluster b one that is twice as fast; four items of 10 s come at once."""

    @pytest.fixture
    def run(self) -> SimulatedRun:
        where = fleet(exact("a", "1x{CPU:2}"), exact("b", "1x{CPU:1}@2"))
        return SimulatedRun(where, *(item(0, 1, 10) for _ in range(4)))

    def test_when_and_where_attempts_begin(self, run: SimulatedRun) -> None:
        assert run.began() == [(0, "t0", "a", 1), (0, "t1", "b", 1), (0, "t2", "a", 1), (5, "t3", "b", 1)]

    def test_makespan_and_waits(self, run: SimulatedRun) -> None:
        assert run.result.makespan_s == 10
        assert run.result.wait_s == {"count": 4, "mean": 1.25, "p50": 0.0, "p95": 5.0, "p99": 5.0, "max": 5.0}

    def test_use(self, run: SimulatedRun) -> None:
        assert run.figures["clusters"] == {
            "a": {"succeeded": 2, "use": {"CPU": 1.0}},
            "b": {"succeeded": 2, "use": {"CPU": 1.0}},
        }

    def test_the_machine_receives_every_event(self, run: SimulatedRun) -> None:
        assert [at for at, _ in run.events(Submitted)] == [0, 0, 0, 0]
        assert sorted((at, one.node_id) for at, one in run.events(Started)) == [
            (0, "a-n1"),
            (0, "a-n1"),
            (0, "b-n1"),
            (5, "b-n1"),
        ]
        assert [(at, one.status, one.took) for at, one in run.events(AttemptFinished)] == [
            (5, "succeeded", 5),
            (10, "succeeded", 10),
            (10, "succeeded", 10),
            (10, "succeeded", 5),
        ]


def test_latency_delays_starts_and_reports_but_not_run_times() -> None:
    run = SimulatedRun(fleet(exact("a", "{CPU:1}", latency_s=0.25)), item(1, 1, 10), item(1, 1, 10))
    # Sent at 1, there at 1.25, over at 11.25, known at 11.5, the next one there at 11.75, over at 21.75, known at 22.
    assert run.began() == [(1.25, "t0", "a", 1), (11.75, "t1", "a", 1)]
    assert run.result.makespan_s == 21


def test_short_attempts_are_reported_in_one_event() -> None:
    run = SimulatedRun(fleet(exact("a", "{CPU:1}")), item(0, 1, 0.01))
    assert run.events(Started) == []
    [(at, end)] = run.events(AttemptFinished)
    assert (at, end.started_at, end.node_id) == (0.01, 0.0, "a-n1")


def test_a_wide_item_needs_one_node() -> None:
    run = SimulatedRun(fleet(exact("a", "2x{CPU:4}")), item(0, 3, 10), item(0, 3, 20), item(1, 4, 5))
    assert run.began()[-1] == (10, "t2", "a", 1)


def test_priority_goes_first() -> None:
    run = SimulatedRun(fleet(exact("a", "{CPU:1}")), item(0, 1, 10), item(1, 1, 10), item(2, 1, 10, priority=5))
    assert [task for _, task, _, _ in run.began()] == ["t0", "t2", "t1"]
    assert list(run.figures["wait_s_by_priority"]) == ["5", "0"]
    assert run.figures["wait_s_by_priority"]["5"]["mean"] == 8


def test_a_priority_with_a_fraction_goes_between_its_neighbours() -> None:
    waiting = [item(1, 1, 10, priority=priority) for priority in (2, 3.0, 2.5)]
    run = SimulatedRun(fleet(exact("a", "{CPU:1}")), item(0, 1, 10), *waiting)
    waits = run.figures["wait_s_by_priority"]
    assert {priority: wait["mean"] for priority, wait in waits.items()} == {"3": 9, "2.5": 19, "2": 29, "0": 0}


def test_waiting_owners_get_fair_shares() -> None:
    items = [item(0, 1, 10, owner="ann") for _ in range(6)] + [item(0, 1, 10, owner="bob") for _ in range(2)]
    run = SimulatedRun(fleet(exact("a", "{CPU:2}")), *items)
    second_turn = [task for at, task, _, _ in run.began() if at == 10]
    assert sorted(int(task[1:]) >= 6 for task in second_turn) == [False, True]
    assert set(run.figures["wait_s_by_owner"]) == {"ann", "bob"}


def test_fairness_counts_only_owners_with_waiting_items() -> None:
    """From 0 to 10 ann holds both CPUs and both want more: the index is 1/2. Then each holds one: it is 1."""
    items = [item(0, 1, 10, owner="ann") for _ in range(4)] + [item(0.5, 1, 10, owner="bob") for _ in range(2)]
    run = SimulatedRun(fleet(exact("a", "{CPU:2}")), *items)
    assert 0.5 < run.figures["fairness"] < 0.8


def test_no_fairness_with_one_owner() -> None:
    assert SimulatedRun(fleet(exact("a", "{CPU:1}")), item(0, 1, 1), item(0, 1, 1)).figures["fairness"] is None


def test_required_tags_are_honoured() -> None:
    where = fleet(exact("a", "{CPU:8}"), exact("b", "{CPU:1}", tags=("arm64",)))
    run = SimulatedRun(where, item(0, 1, 10, require_tags=("arm64",)), item(0, 1, 10, require_tags=("arm64",)))
    assert run.began() == [(0, "t0", "b", 1), (10, "t1", "b", 1)]


class TestKinds:
    def test_a_job_spreads_over_nodes_and_its_end_is_polled(self) -> None:
        run = SimulatedRun(
            fleet(exact("a", "2x{CPU:4}", job_poll_s=4.0)), item(0, 6, 10, kind="job"), item(0, 6, 1, kind="job")
        )
        # Over at 10, seen at 12; only then the other one has room.
        assert run.began() == [(0, "t0", "a", 1), (12, "t1", "a", 1)]
        assert run.result.makespan_s == 16

    def test_a_gang_starts_together(self) -> None:
        where = fleet(exact("a", "2x{CPU:4}"))
        run = SimulatedRun(where, item(0, 3, 10), item(0, 3, 5, kind="gang", members=2))
        assert run.began() == [(0, "t0", "a", 1), (10, "t1", "a", 1)]
        assert run.events(Started)[-1][1].node_id.split() == ["a-n1", "a-n2"]

    def test_an_actor_runs_for_its_run_time(self) -> None:
        run = SimulatedRun(fleet(exact("a", "{CPU:1}")), item(0, 1, 10, kind="actor"), item(0, 1, 1))
        assert run.began() == [(0, "t0", "a", 1), (10, "t1", "a", 1)]

    def test_an_exception_of_user_code_is_tried_again(self) -> None:
        run = SimulatedRun(
            fleet(exact("a", "{CPU:1}"), retries=1, retry_backoff={"jitter": 0}), item(0, 1, 10, fails=1)
        )
        assert run.ended() == [(10, "t0", "failed"), (21, "t0", "succeeded")]
        assert run.figures["failures"]["user_errors"] == 1

    def test_without_retries_it_fails(self) -> None:
        run = SimulatedRun(fleet(exact("a", "{CPU:1}")), item(0, 1, 10, fails=1))
        assert run.figures["items"]["failed"] == 1

    def test_what_failed_in_the_record_fails_whatever_the_settings_are(self) -> None:
        run = SimulatedRun(
            fleet(exact("a", "{CPU:1}"), retries=5, retry_backoff={"jitter": 0}),
            item(0, 1, 10, fails=2, outcome="failed"),
            item(100, 1, 10, outcome="failed"),
        )
        assert run.ended() == [(10, "t0", "failed"), (21, "t0", "failed"), (110, "t1", "failed")]
        assert run.figures["items"]["failed"] == 2

    @pytest.mark.parametrize("kind", ["task", "job", "actor", "gang"])
    def test_what_was_cancelled_in_the_record_is_stopped_after_its_run_time(self, kind: Kind) -> None:
        run = SimulatedRun(
            fleet(exact("a", "{CPU:1}"), retries=5, retry_backoff={"jitter": 0}),
            item(0, 1, 10, kind=kind, outcome="cancelled", fails=1),
        )
        assert run.ended() == [(10, "t0", "failed"), (21, "t0", "cancelled")]
        assert (run.figures["items"]["cancelled"], run.figures["items"]["succeeded"]) == (1, 0)

    def test_infeasible_items_fail_at_once(self) -> None:
        run = SimulatedRun(fleet(exact("a", "{CPU:1}")), item(0, 2, 10))
        assert run.figures["items"] == {
            "submitted": 1,
            "succeeded": 0,
            "failed": 1,
            "cancelled": 0,
            "unfinished": 0,
        }
        assert run.figures["wait_s"]["mean"] is None


class TestOtherPeople:
    def test_other_users_reduce_the_free_amounts(self) -> None:
        """Half of four CPUs are taken: two run at a time, not three."""
        where = fleet(exact("a", "{CPU:4}", others=OthersLoad(0.5)))
        run = SimulatedRun(where, *(item(0, 1, 10) for _ in range(3)))
        assert [at for at, *_ in run.began()] == [0, 0, 10]

    def test_other_users_take_released_amounts(self) -> None:
        """At 5 others want everything, and get what our first leaves; the second waits until they go at 30."""
        load = OthersLoad(steps=((5, 1.0), (30, 0.0)))
        where = fleet(exact("a", "{CPU:1}", others=load, snapshot_every_s=1.0))
        run = SimulatedRun(where, item(0, 1, 10), item(1, 1, 10))
        [(first, *_), (second, *_)] = run.began()
        assert first == 0
        assert second == 30

    def test_changing_load_of_other_users_delays_our_items(self) -> None:
        items = [item(0, 1, 10) for _ in range(40)]
        alone = SimulatedRun(fleet(exact("a", "{CPU:4}")), *items).result.makespan_s
        load = OthersLoad(0.5, every_s=7.0)
        beside = SimulatedRun(fleet(exact("a", "{CPU:4}", others=load, snapshot_every_s=1.0)), *items).result.makespan_s
        assert alone == 100
        assert beside > 130


class TestSnapshots:
    def test_only_changes_are_pushed(self) -> None:
        run = SimulatedRun(fleet(exact("a", "{CPU:1}", snapshot_every_s=1.0)), item(0, 1, 100))
        times = [at for at, _ in run.events(SnapshotTaken)]
        assert times == [0, 1]  # what it has, and that one is taken

    def test_lost_snapshots_do_not_arrive(self) -> None:
        """Others leave at 10, which no snapshot tells: the item waits until the lost ones are given up as unknown."""
        items = [item(number, 1, 1) for number in range(30)]
        instructions = SimulatedRun(fleet(exact("a", "{CPU:1}", snapshot_every_s=1.0)), *items)
        lossy = SimulatedRun(fleet(exact("a", "{CPU:1}", snapshot_every_s=1.0, snapshot_loss=0.7)), *items)
        assert len(lossy.events(SnapshotTaken)) < len(instructions.events(SnapshotTaken)) / 2
        assert lossy.figures["items"]["succeeded"] == 30

    def test_a_delayed_snapshot_shows_the_past(self) -> None:
        where = fleet(exact("a", "{CPU:2}", snapshot_every_s=5.0, snapshot_delay_s=3.0))
        run = SimulatedRun(where, item(4, 1, 2), item(20, 1, 1))
        seen = [(at, one.snapshot.taken_at, one.snapshot.nodes[0].free["CPU"]) for at, one in run.events(SnapshotTaken)]
        assert seen[0] == (3, 3, 2.0)
        assert (8, 8, 1.0) in seen  # taken at 5, when one was in use; it was over when this came


def test_the_machine_forgets_finished_items() -> None:
    from ray_multicluster_scheduler.simulation import Simulation, Workload

    run = Simulation(fleet(exact("a", "{CPU:1}")), Workload([item(0, 1, 1), item(0, 1, 1)]))
    run.run()
    assert list(run.machine.records()) == []


def test_an_empty_workload() -> None:
    assert SimulatedRun(fleet(exact("a", "{CPU:1}"))).figures["items"]["submitted"] == 0


def test_the_run_ends_if_items_wait_for_ever() -> None:
    """Others hold all of it and never leave."""
    where = fleet(exact("a", "{CPU:1}", others=OthersLoad(1.0)))
    assert SimulatedRun(where, item(0, 1, 1)).figures["items"]["unfinished"] == 1

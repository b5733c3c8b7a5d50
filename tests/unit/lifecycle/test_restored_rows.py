"""What changes of an item because of others is durable as well, and what was given up is ended by the next process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ray_multicluster_scheduler.common.model import FailureClass, NodeSnapshot, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    Dispatch,
    Remember,
    RememberFleet,
    StartAttempt,
)
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, snapshot, task
from tests.unit.lifecycle.test_prefetch import knowing, work
from tests.unit.lifecycle.test_restore import ready, reborn


def of_two(at: float, free: float) -> events.SnapshotTaken:
    nodes = (NodeSnapshot("n1", {"CPU": 8.0}, {"CPU": 0.0}), NodeSnapshot("n2", {"CPU": 8.0}, {"CPU": free}))
    return events.SnapshotTaken(replace(snapshot("a", at, 8, 8), nodes=nodes))


class TestPlaces:
    def test_one_that_was_handed_over_is_there_once(self) -> None:
        driver = knowing(1)
        for name in ("t0", "t1", "t2"):
            driver.submit(work(name))
            driver.accept(name)
        driver.start("t0", "n1")
        driver.move("t0", "t1")
        assert (driver.machine.row("t0").place, driver.machine.row("t1").place) == ("none", "held")
        after = reborn(driver)
        after.link_up("a")
        after.succeed("t0", 0.01)
        assert after.issued(StartAttempt) == []
        places = after.machine.registry.state("a").slots
        assert (list(places.held), list(places.prefetched)) == (["t1"], ["t2"])

    def test_a_start_instruction_is_repeated_after_a_restart(self) -> None:
        driver = knowing(1)
        driver.submit(work("t0"))
        driver.submit(work("t1"))
        driver.succeed("t0", 0.01)
        assert driver.issued(StartAttempt) == [StartAttempt("t1", 1, "a")]
        after = reborn(driver)
        assert [(one.task_id, one.ahead) for one in after.issued(Dispatch)] == [("t1", "")]
        assert after.issued(StartAttempt) == [StartAttempt("t1", 1, "a")]

    def test_a_node_that_appears_changes_the_row_of_what_waited_for_it(self) -> None:
        grows = cluster("a", autoscaling=True, max_node={"CPU": 8.0})
        driver = Driver(grows)
        driver.link_up("a", 8)
        driver.submit(task("t1", 8))
        driver.start("t1", "n1")
        driver.submit(job("j", 8))
        driver.start("j")
        driver.send(of_two(driver.now + 5, 8.0), after=5)
        assert driver.issued(Remember) == [Remember("j")]
        assert list(driver.machine.row("j").parts) == ["n2"]
        after = reborn(driver)
        after.link_up("a")
        after.send(of_two(after.now, 0.0))
        after.submit(task("t3", 8))
        assert after.state("t3") is TaskState.DISPATCHING, "the next node is for it"

    def test_one_that_runs_does_not_wait_for_a_new_node(self) -> None:
        grows = cluster("a", autoscaling=True, max_node={"CPU": 8.0})
        driver = Driver(grows, cluster("b"))
        driver.link_up("a", 8)
        driver.submit(task("t", 8))
        driver.send(events.ClusterChanged("a", None))
        driver.start("t", "n1")
        assert driver.machine.row("t").place == "away"
        after = reborn(driver, clusters=[grows])
        assert after.machine.registry.state("a").ledger.pending_on_new_nodes() == {}


class TestGivenUp:
    def test_a_lost_job_that_goes_elsewhere_is_ended_where_it_was(self) -> None:
        driver = ready(4, 4)
        driver.submit(job("j", 1, retry_lost=True, preferred_cluster="a"))
        driver.start("j")
        driver.send(events.DashboardChecked("a", "silent"))
        driver.send(events.DashboardChecked("a", "silent"), after=61)
        assert driver.issued(CancelAttempt, ever=True) == [CancelAttempt("j", 1, "a", force=True)]
        after = reborn(driver)
        assert after.issued(CancelAttempt) == [CancelAttempt("j", 1, "a", force=True)]
        after.send(events.AttemptFinished("j", 1, "cancelled"))
        assert after.issued(Remember) == [Remember("j")]
        assert reborn(after).issued(CancelAttempt) == []

    def test_a_detached_actor_that_was_not_ready_is_ended_too(self) -> None:
        driver = ready(4, 4)
        driver.submit(actor("x", 1, lifetime="detached", public_name="svc", preferred_cluster="a"))
        driver.accept("x")
        driver.send(events.ClusterDeclaredDead("a"))
        assert driver.issued(CancelAttempt) == [CancelAttempt("x", 1, "a", force=True)]

    def test_a_late_end_of_an_attempt_that_was_not_abandoned_is_ignored(self) -> None:
        driver = ready(4)
        driver.submit(task("t", crash_retries=2))
        driver.start("t")
        driver.send(events.AttemptFinished("t", 1, "failed", FailureClass.CRASH, sentence="died"))
        assert driver.send(events.AttemptFinished("t", 1, "succeeded")) == []


class TestTheRest:
    def test_what_is_still_waited_for_is_what_counts(self) -> None:
        driver = ready(2)
        for name in ("x", "y"):
            driver.submit(task(name))
        driver.submit(task("z", after=("x", "y")))
        driver.succeed("x")
        assert driver.issued(Remember) == [Remember("z")]
        driver.machine.forget("x")
        after = reborn(driver)
        after.succeed("y")
        assert after.state("z") is TaskState.QUEUED

    def test_fences_grow_also_when_nothing_is_left(self) -> None:
        driver = ready(2)
        driver.submit(task("t"))
        driver.succeed("t")
        fence = driver.machine.next_fence
        after = Driver(cluster("a"))
        after.send(events.Restored((), next_fence=fence))
        after.link_up("a", 1)
        after.submit(task("t"))
        assert [one.fence for one in after.issued(Dispatch)] == [fence]

    def test_no_item_joins_a_restored_one_that_is_being_cancelled(self) -> None:
        driver = ready(2)
        driver.submit(task("t", content_key="k"))
        driver.start("t")
        driver.cancel("t")
        assert driver.machine.id_for_content("k") is None
        assert reborn(driver).machine.id_for_content("k") is None

    @pytest.mark.parametrize(
        "event",
        [
            events.CordonChanged("a", cordoned=True),
            events.ClusterChanged("a", cluster("a", weight=2.0)),
            events.ClusterChanged("a", None),
            events.QueuePaused("cluster", "a"),
            events.QueueResumed("cluster", "a"),
            events.QueuePaused("owner", "ann"),
            events.QueueResumed("owner", "ann"),
            events.OwnerLimitsChanged("ann", OwnerLimits(max_running=1)),
            events.ClusterDeclaredDead("a"),
        ],
        ids=lambda event: type(event).__name__,
    )
    def test_what_people_say_is_to_be_remembered_before_all_else(self, event: events.Event) -> None:
        driver = ready(2)
        assert driver.send(event)[0] == RememberFleet()

    def test_so_is_that_a_dead_cluster_lives(self) -> None:
        for changes in (events.LinkUp("a", "3.11.9", "2.60.0", "s1"), events.SnapshotTaken(snapshot("a", 1003.0, 2))):
            driver = ready(2)
            driver.send(events.LinkDown("a", "silent"))
            driver.send(events.ClusterDeclaredDead("a"), after=1)
            assert RememberFleet() in driver.send(changes, after=2)
            assert RememberFleet() not in driver.send(changes)

    def test_an_entry_that_changes_leaves_a_cordon_alone(self) -> None:
        driver = ready(2)
        driver.send(events.CordonChanged("a", cordoned=True))
        driver.send(events.ClusterChanged("a", cluster("a", weight=2.0)))
        assert driver.machine.view("a", driver.now).cordoned

    def test_who_has_waited_for_room_goes_on_waiting(self) -> None:
        driver = ready(2, reserve_after_s=300)
        driver.submit(task("runs"))
        queued = driver.submit(task("wide", 2)).queued_at
        driver.now += 200
        after = reborn(driver, reserve_after_s=300)
        assert after.machine._state.output.timers["keep"] == (queued or 0) + 300

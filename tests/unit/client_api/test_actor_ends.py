"""How calls of an actor's methods end when they are cancelled, or their actor or scheduler ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.common.exception import ActorDiedError, SchedulerError, TaskCancelledError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.client_api.actor_plane import ActorPlane, Counter, constructor_failed, numbers
from tests.unit.client_api.control_plane import until


class TestCancel:
    def test_one_that_waits_never_leaves(self, slow: ActorPlane) -> None:
        actor = slow.actor()
        first, second = actor.add.remote(1), actor.add.remote(2)
        first.cancel()
        with pytest.raises(TaskCancelledError, match="before it was sent"):
            first.result(60)
        slow.start(actor)
        calls = slow.sent(1)
        assert ([call.task_id for call in calls], numbers(calls)) == ([second.id], [0])

    def test_one_that_waits_for_an_argument_holds_up_nobody_any_more(self, plane: ActorPlane) -> None:
        actor, task = plane.actor(), plane.task("t1")
        first, second = actor.add.remote(task), actor.add.remote(2)
        first.cancel()
        assert [call.task_id for call in plane.sent(1)] == [second.id]

    def test_of_one_that_left_the_cluster_is_asked(self, plane: ActorPlane) -> None:
        handle = plane.actor().add.remote(1)
        plane.sent(1)
        handle.cancel(force=True)
        with pytest.raises(TaskCancelledError, match=handle.id):
            handle.result(60)
        assert plane.link.cancelled == [(handle.id, 1, True)]
        handle.cancel()
        plane.settle()
        assert len(plane.link.cancelled) == 1

    def test_ids(self, plane: ActorPlane) -> None:
        handle = plane.actor().add.remote(1)
        calls = plane.runtime.method_calls
        assert calls.was_issued(handle.id)
        assert plane.runtime.explain(handle.id)["state"] in ("QUEUED", "DISPATCHING")
        for wrong in ("call-cp1-99", "call-cp1-0", "call-cp1-x", "call-other-1", "t1", 5):
            assert not calls.was_issued(wrong)
        plane.sent(1)
        plane.answer(handle.id)
        assert plane.runtime.explain(handle.id)["state"] == "EXPIRED"
        assert handle.explain()["state"] == "SUCCEEDED"


class TestTheActorEnds:
    def test_calls_of_a_dead_attempt_fail_and_later_ones_go_to_the_next(self, plane: ActorPlane) -> None:
        actor = plane.actor(max_restarts=1)
        lost = actor.add.remote(1)
        plane.sent(1)
        plane.slow = True
        plane.die(actor)
        until(lambda: actor.attempt == 2)
        later = actor.add.remote(2)
        plane.fail_call(lost.id, FailureClass.CRASH, message="the worker died")
        with pytest.raises(ActorDiedError):
            lost.result(60)
        plane.settle()
        assert len(plane.link.calls) == 1
        plane.start(actor, 2)
        call = plane.sent(2)[1]
        assert call.method is not None
        assert (call.task_id, call.method.actor_attempt, call.method.number) == (later.id, 2, 0)

    def test_while_its_cluster_is_out_of_reach_they_wait(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        actor.add.remote(0)
        plane.sent(1)
        plane.post(events.LinkUp("mac", "3.11.7", "2.60.0", "s1"))
        plane.post(events.LinkDown("mac", "no contact"))
        state = plane.runtime.machine.registry.state("mac")
        plane.runtime.call_and_wait(lambda: setattr(state, "link_lost_at", state.link_lost_at - 1000))
        plane.post(events.TimerFired("lost:mac"))
        until(lambda: actor.state is TaskState.LOST)
        waits = actor.add.remote(1)
        plane.settle()
        assert (waits.state, len(plane.link.calls)) == (TaskState.QUEUED, 1)
        plane.post(events.LinkUp("mac", "3.11.7", "2.60.0", "s1"))
        assert numbers(plane.sent(2)) == [0, 1]

    def test_after_its_death_calls_fail_at_once(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        plane.die(actor)
        until(lambda: actor.state is TaskState.FAILED)
        with pytest.raises(ActorDiedError, match=rf"was not sent: actor {actor.id} has ended\. .*the worker died"):
            actor.add.remote(1).result(60)
        assert plane.link.calls == []

    def test_killed(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        plane.obedient = False
        actor.kill()
        handle = actor.add.remote(1)
        plane.settle()
        assert plane.link.calls == [], "nothing leaves after a kill"
        plane.post(events.AttemptFinished(actor.id, 1, "cancelled"))
        with pytest.raises(ActorDiedError, match=rf"actor {actor.id} was killed"):
            handle.result(60)
        assert actor.state is TaskState.CANCELLED

    def test_it_left_by_itself(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        plane.post(events.AttemptFinished(actor.id, 1, "succeeded"))
        until(lambda: actor.state is TaskState.SUCCEEDED)
        with pytest.raises(ActorDiedError, match="exited by itself"):
            actor.add.remote(1).result(60)

    def test_its_constructor_failed(self, slow: ActorPlane) -> None:
        actor = slow.actor()
        handle = actor.add.remote(1)
        constructor_failed(slow, actor, ValueError("no such file"))
        with pytest.raises(ActorDiedError, match="no such file") as caught:
            handle.result(60)
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(ValueError, match="no such file"):
            actor.ready(5)


class TestTheSchedulerEnds:
    def test_every_call_is_answered_and_none_is_taken(self) -> None:
        with ActorPlane() as plane:
            actor = plane.actor()
            sent = actor.add.remote(1)
            plane.sent(1)
            waits = actor.add.remote(plane.task("t1"))
        for handle in (sent, waits):
            with pytest.raises(TaskCancelledError, match="the scheduler was shut down"):
                handle.result(0)
            assert handle.explain()["state"] == "CANCELLED"
        with pytest.raises(SchedulerError, match="was shut down, and actor .* ended with it.*make a new") as caught:
            actor.add.remote(2)
        assert "use this one again" not in str(caught.value)
        sent.cancel()
        assert plane.runtime.method_calls.unanswered() == []

    def test_a_detached_actor_can_be_found_again(self) -> None:
        with ActorPlane() as plane:
            actor = plane.actor(name="tally", lifetime="detached")
        with pytest.raises(SchedulerError, match=r"get_actor\('tally'\)"):
            actor.add.remote(1)

    def test_many_threads_call_while_it_ends(self) -> None:
        plane = ActorPlane()
        actor = plane.actor()
        handles: list[Handle] = []

        def call() -> None:
            for n in range(100_000):
                try:
                    handles.append(actor.add.remote(n))
                except SchedulerError:
                    return

        with ThreadPoolExecutor(3) as pool:
            calling = [pool.submit(call) for _ in range(3)]
            until(lambda: len(handles) > 500)
            plane.runtime.close()
            for one in calling:
                one.result(30)
        assert all(handle.done() for handle in handles)


def test_a_defect_on_the_way_is_reported_to_all_waiting_callers(plane: ActorPlane) -> None:
    actor = plane.actor()

    def fail(cluster: str) -> None:
        raise ZeroDivisionError("oops")

    plane.runtime.method_calls.link = fail
    handle = actor.add.remote(1)
    with pytest.raises(SchedulerError, match="not answered: the scheduler has a defect.*oops"):
        handle.result(60)
    assert handle.state is TaskState.FAILED
    with pytest.raises(SchedulerError, match="has a defect.*oops"):
        actor.add.remote(2)


def test_the_child_of_a_fork_cannot_cancel_a_call(plane: ActorPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = plane.actor().add.remote(1)
    plane.sent(1)
    monkeypatch.setattr(plane.runtime, "_process", -1)
    with pytest.raises(SchedulerError, match="forked from"):
        handle.cancel()
    monkeypatch.undo()
    plane.answer(handle.id, 1)
    assert handle.result(60) == 1
    handle.cancel()  # nothing happens to one that is over


def test_finished_calls_are_released(plane: ActorPlane) -> None:
    actor = plane.actor()
    for n in range(100):
        actor.add.remote(n)
    plane.sent(100)
    plane.answer_all()
    until(lambda: plane.runtime.method_calls.unanswered() == [])
    calls = actor._rmcs_calls
    assert (calls.unanswered, len(calls.waiting)) == (0, 0)


def test_the_class_is_what_the_tests_take_it_for() -> None:
    counter = Counter(1)
    assert (counter.add(2), counter.pair()) == (3, (3, 4))

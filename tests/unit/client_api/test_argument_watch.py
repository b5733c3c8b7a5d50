"""Actors among the arguments: found wherever they are, waited for, and they say where it must run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.arguments.arguments import prepare_arguments
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.common.model import ActorDescription, TaskState
from ray_multicluster_scheduler.control_plane.runtime.arguments import ArgumentFailure, ArgumentWatch, Values
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import task


class FakeActorHandle:
    """What the handle of an actor looks like to code that pickles it."""

    def __init__(self, actor_id: str) -> None:
        described = replace(task(actor_id), kind="actor", actor=ActorDescription(actor_id))
        self._item = Item(described)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self._item.id,)

    _rmcs_reference = __reduce__

    def moved(self, state: TaskState, cluster: str | None = "mac") -> None:
        self._item.moved(Transition(self._item.id, 1, state, 1, 0.0, "CODE", "sentence", cluster))

    def died(self) -> None:
        done = Complete(self._item.id, TaskState.FAILED, 1, "mac", "ActorDiedError", "it crashed")
        self._item.ended(Outcome(done, None))


class RecordingWatch:
    """Watches, and writes down what it receives."""

    def __init__(self, *args: Any) -> None:
        self.changes: list[Values | ArgumentFailure] = []
        self.watch = ArgumentWatch(prepare_arguments(args, {}, "f"), self.changes.append, self.changes.append)
        self.waits_for = self.watch.waits_for
        self.watch.begin()


def test_actors_are_found_anywhere_and_count_once() -> None:
    one, other = FakeActorHandle("a1"), FakeActorHandle("a2")
    arguments = prepare_arguments((one, [{"deep": other}], one), {"again": one}, "f")
    assert {actor._item.id for actor in arguments.actors} == {"a1", "a2"}
    assert not arguments.plain
    captured = prepare_arguments((1,), {}, "f", (other,))
    assert captured.actors == (other,)


def test_it_waits_until_the_actor_runs_and_is_pinned_to_its_cluster() -> None:
    actor = FakeActorHandle("a1")
    received = RecordingWatch(actor)
    assert received.waits_for == "waits for its argument actor a1"
    actor.moved(TaskState.QUEUED, None)
    actor.moved(TaskState.DISPATCHING)
    assert received.changes == []
    actor.moved(TaskState.RUNNING, "linux")
    assert received.changes == [Values((), "linux")]
    assert not actor._item._step_watchers
    actor.moved(TaskState.RETRYING)
    actor.moved(TaskState.RUNNING)
    assert len(received.changes) == 1


def test_one_that_runs_already() -> None:
    actor = FakeActorHandle("a1")
    actor.moved(TaskState.RUNNING)
    assert RecordingWatch(actor, [actor]).changes == [Values((), "mac")]


class LateSource(TaskHandle):
    """A task whose value a test gives."""

    def __init__(self) -> None:
        super().__init__(Item(task("t1")), None)  # type: ignore[arg-type]  # nothing is asked of the control plane

    def _check_process(self) -> None:
        """It is this one."""

    def succeeds(self) -> None:
        done = Complete("t1", TaskState.SUCCEEDED, 1, "mac")
        self._item.ended(Outcome(done, CallResult("t1", 1, "succeeded", b"value")))


@pytest.mark.parametrize("away", [TaskState.RETRYING, TaskState.QUEUED, TaskState.DISPATCHING])
def test_one_that_is_being_restarted_is_waited_for_again(away: TaskState) -> None:
    actor, source = FakeActorHandle("a1"), LateSource()
    received = RecordingWatch(actor, source)
    actor.moved(TaskState.RUNNING, "mac")
    actor.moved(away, None)
    source.succeeds()
    assert received.changes == []
    actor.moved(TaskState.RUNNING, "linux")
    assert received.changes == [Values((("result-t1", b"value"),), "linux")]


def test_one_out_of_reach_stays_where_it_is() -> None:
    actor, source = FakeActorHandle("a1"), LateSource()
    received = RecordingWatch(actor, source)
    actor.moved(TaskState.LOST, "mac")
    source.succeeds()
    assert received.changes == [], "it has not run yet"
    actor.moved(TaskState.RUNNING, "mac")
    assert len(received.changes) == 1
    other = LateSource()
    received = RecordingWatch(actor, other)
    actor.moved(TaskState.LOST, "mac")
    other.succeeds()
    assert received.changes == [Values((("result-t1", b"value"),), "mac")]


def test_actors_of_two_clusters_cannot_be_used_together() -> None:
    one, other = FakeActorHandle("a1"), FakeActorHandle("a2")
    received = RecordingWatch(one, other)
    one.moved(TaskState.RUNNING, "mac")
    other.moved(TaskState.RUNNING, "linux")
    (failure,) = received.changes
    assert isinstance(failure, ArgumentFailure)
    assert failure.error == "TaskSubmissionError"
    assert "a2 on linux, a1 on mac" in failure.sentence


@pytest.mark.parametrize("before", [True, False])
def test_a_dead_actor(before: bool) -> None:
    actor = FakeActorHandle("a1")
    if before:
        actor.died()
    received = RecordingWatch(actor)
    actor.died()
    (failure,) = received.changes
    assert isinstance(failure, ArgumentFailure)
    assert (failure.error, failure.origin) == ("ActorDiedError", None)
    assert "(a1), has ended: it crashed" in failure.sentence


def test_nobody_is_notified_after_the_stop() -> None:
    actor = FakeActorHandle("a1")
    received = RecordingWatch(actor)
    received.watch.stop()
    received.watch.stop()
    actor.moved(TaskState.RUNNING)
    actor.died()
    assert received.changes == []
    assert not actor._item._step_watchers


def test_one_that_was_stopped_before_it_began_leaves_nothing_behind() -> None:
    """As when its item is cancelled between being known and being watched."""
    actor, source = FakeActorHandle("a1"), LateSource()
    changes: list[Values | ArgumentFailure] = []
    watch = ArgumentWatch(prepare_arguments((actor, source), {}, "f"), changes.append, changes.append)
    watch.stop()
    watch.begin()
    assert not actor._item._step_watchers
    assert not source._item._watchers
    actor.moved(TaskState.RUNNING)
    source.succeeds()
    assert changes == []


def test_on_a_control_plane() -> None:
    """An item that uses an actor waits for it, and goes where it is or not at all."""
    with ControlPlane() as plane:
        actor, elsewhere = FakeActorHandle("a1"), FakeActorHandle("a2")

        def submit(task_id: str, *args: Any) -> TaskHandle:
            arguments = prepare_arguments(args, {}, task_id)
            what = plane.with_payload(task(task_id))
            return TaskHandle(plane.runtime.submit(what, arguments), plane.runtime)

        waiting = submit("t1", actor)
        assert waiting.explain()["sentence"] == "waits for its argument actor a1"
        actor.moved(TaskState.RUNNING, "mac")
        until(lambda: waiting.state is TaskState.RUNNING)
        elsewhere.died()
        with pytest.raises(Exception, match="has ended: it crashed") as caught:
            submit("t2", elsewhere).result(60)
        assert type(caught.value).__name__ == "ActorDiedError"

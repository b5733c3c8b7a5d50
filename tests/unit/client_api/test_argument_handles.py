"""Handles as arguments: taken out, waited for, replaced by their values, on a control plane with a real brain."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.arguments import references
from ray_multicluster_scheduler.app.client_api.arguments.arguments import pickled, prepare_arguments, runtime_env_for
from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, PartHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.in_cluster import handle as in_cluster
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import (
    QueueFullError,
    SchedulerError,
    TaskCancelledError,
    TaskSubmissionError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.common.object_argument import ObjectArgument, fill_in
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.control_plane.runtime.outcome import payload_of
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.user_code import load_call
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job, task

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


def put(plane: ControlPlane, value: object) -> ObjectHandle:
    return ObjectHandle(pickling.dumps(value), set(), (), plane.runtime)


def submit(plane: ControlPlane, task_id: str, *args: Any, **values: Any) -> TaskHandle:
    """A task with these arguments."""
    arguments = prepare_arguments(args, {}, task_id)
    return TaskHandle(plane.runtime.submit(plane.with_payload(task(task_id, **values)), arguments), plane.runtime)


def succeed(plane: ControlPlane, handle: Handle, value: object) -> None:
    item_id = handle._item.id
    until(lambda: handle.state is TaskState.RUNNING)
    result = CallResult(item_id, 1, "succeeded", pickling.dumps(value))
    plane.runtime.call_and_wait(lambda: plane.runtime.collector.finished("mac", result))
    until(handle.done)


def fail(plane: ControlPlane, handle: Handle, error: Exception) -> None:
    until(lambda: handle.state is TaskState.RUNNING)
    result = CallResult(handle.id, 1, "failed", pickling.dumps(error), FailureClass.USER, message=str(error))
    plane.runtime.call_and_wait(lambda: plane.runtime.collector.finished("mac", result))
    until(handle.done)


def loaded(plane: ControlPlane, handle: Handle, arguments: Arguments) -> Any:
    """What the function would be called with, over there."""
    objects = plane.runtime.payload_cache.objects_of(handle.id)
    args, kwargs = pickling.loads(arguments.data)
    return fill_in(args, kwargs, lambda index: pickling.loads(objects[index][1]))


class TestTakenOut:
    def test_handles_become_places_and_each_item_has_one(self, plane: ControlPlane) -> None:
        one, kept = plane.task("t1"), put(plane, "kept")
        parts = PartHandle.split(one, 2)
        arguments = prepare_arguments((1, one, kept), {"a": one, "b": parts[1]}, "f")
        args, kwargs = pickling.loads(arguments.data)
        assert args == (1, ObjectArgument(0), ObjectArgument(1))
        assert kwargs == {"a": ObjectArgument(0), "b": ObjectArgument(0, 1)}
        assert arguments.sources == (one, kept)
        assert not arguments.plain
        assert prepare_arguments((1,), {"x": "y"}, "f").plain

    def test_what_a_value_needs_goes_along(self, plane: ControlPlane, users_module: str) -> None:
        kept = ObjectHandle(b"", {"users_shapes"}, (), plane.runtime)
        arguments = prepare_arguments((kept,), {}, "f")
        assert runtime_env_for(arguments, {})["py_modules"] == [users_module]
        assert runtime_env_for(arguments, {"py_modules": []}) == {"py_modules": []}, "the caller is taken at his word"

    def test_the_modules_of_a_task_go_along_with_its_result(self, plane: ControlPlane) -> None:
        producer = plane.task("t1", runtime_env={"py_modules": ["/users/shapes"]})
        arguments = prepare_arguments((producer,), {}, "f")
        assert runtime_env_for(arguments, {}) == {"py_modules": ["/users/shapes"]}
        assert runtime_env_for(arguments, {"py_modules": ["/x"]}) == {"py_modules": ["/x", "/users/shapes"]}
        assert runtime_env_for(arguments, {"py_modules": []}) == {"py_modules": []}


@pytest.fixture
def users_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    place = tmp_path / "users_shapes.py"
    place.write_text("class Square: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return str(place)


class TestReferences:
    def test_a_handle_inside_of_something_arrives_as_a_handle(
        self, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, pair, kept = plane.task("t1"), PartHandle.split(plane.task("t2"), 2), put(plane, "kept")
        boxed = ObjectHandle(*pickled([kept, pair[1]], "a value"), plane.runtime)
        code, _, captured = pickled(lambda: (first, kept), "a function")
        arguments = prepare_arguments(([first], boxed), {"a": {"b": pair[0]}, "c": first}, "f", captured)
        assert arguments.sources == (boxed, first, kept, pair[0]), "each item once"
        values = {"t1": 1, "t2": (20, 21), kept.id: "kept"}
        objects = [
            payload_of(boxed._item.outcome) if one is boxed else pickling.dumps(values[one._item.id])
            for one in arguments.sources
        ]
        monkeypatch.setattr(references, "_known", {})
        monkeypatch.setattr(execution_context, "inside", lambda: True)
        monkeypatch.setattr(in_cluster, "put_object", lambda value, name: SimpleNamespace(value=value, name=name))
        function, args, kwargs, _ = load_call(None, arguments.data, objects, lambda: pickling.loads(code))
        ([one], [inner, part]) = args
        assert (one.value, inner.value, part.value, kwargs["a"]["b"].value, kwargs["c"]) == (1, "kept", 21, 20, 1)
        assert function() == (one, inner), "one handle for all references to a value"
        monkeypatch.setattr(references, "referenced_values", lambda: None)
        with pytest.raises(UnknownItemError, match="t1"):
            pickling.loads(code)

    def test_in_its_own_program_a_reference_is_the_handle(self, plane: ControlPlane) -> None:
        first = plane.task("t1")
        boxed = ObjectHandle(*pickled({"a": [first]}, "a value"), plane.runtime)
        assert boxed.result() == {"a": [first]}

    def test_its_value_is_waited_for(self, plane: ControlPlane) -> None:
        first = plane.task("t1")
        second = submit(plane, "t2", {"a": [first]})
        assert second.explain()["sentence"] == "waits for its argument t1"
        succeed(plane, first, 7)
        until(lambda: second.state is TaskState.RUNNING)
        assert plane.runtime.payload_cache.objects_of("t2") == [("result-t1", pickling.dumps(7))]

    def test_pickling_one_for_another_process_is_refused(self, plane: ControlPlane) -> None:
        with pytest.raises(TaskSubmissionError, match="another process"):
            pickle.dumps(plane.task("t1"))


class TestWaitedFor:
    def test_a_value_that_is_there_goes_at_once(self, plane: ControlPlane) -> None:
        kept = put(plane, [1, 2])
        handle = submit(plane, "t1", kept)
        until(lambda: handle.state is TaskState.RUNNING)
        assert plane.runtime.payload_cache.objects_of("t1") == [(kept.digest, pickling.dumps([1, 2]))]
        plane.finish(handle)
        assert plane.runtime.payload_cache.objects_of("t1") == []

    def test_one_that_is_missing_is_waited_for_and_reported(self, plane: ControlPlane) -> None:
        first = plane.task("t1")
        arguments = prepare_arguments((first, 7), {"again": first}, "f")
        second = TaskHandle(
            plane.runtime.submit(plane.with_payload(task("t2")), arguments),
            plane.runtime,
        )
        explanation = second.explain()
        assert (explanation["state"], explanation["sentence"]) == ("PENDING", "waits for its argument t1")
        succeed(plane, first, {"a": 1})
        until(lambda: second.state is TaskState.RUNNING)
        assert loaded(plane, second, arguments) == ([{"a": 1}, 7], {"again": {"a": 1}})
        plane.finish(second)
        until(lambda: len(plane.runtime.payload_cache) == 0)

    def test_many_are_counted_and_named(self, plane: ControlPlane) -> None:
        many = [plane.task(f"t{number}") for number in range(5)]
        last = submit(plane, "last", *many)
        assert last.explain()["sentence"] == "waits for its arguments t0, t1, t2 and 2 more"
        for one in many[:-1]:
            succeed(plane, one, 1)
        assert last.state is TaskState.PENDING
        succeed(plane, many[-1], 1)
        until(lambda: last.state is TaskState.RUNNING)
        plane.finish(last)

    def test_the_value_of_a_job_is_its_status(self, plane: ControlPlane) -> None:
        single = plane.job("j1")
        arguments = prepare_arguments((single,), {}, "f")
        after = TaskHandle(plane.runtime.submit(plane.with_payload(task("t1")), arguments), plane.runtime)
        plane.finish(single)
        until(lambda: after.state is TaskState.RUNNING)
        assert loaded(plane, after, arguments) == (["SUCCEEDED"], {})
        assert isinstance(single, JobHandle)

    def test_a_part_of_a_value(self, plane: ControlPlane) -> None:
        whole = plane.task("t1")
        _, second = PartHandle.split(whole, 2)
        arguments = prepare_arguments((second,), {}, "f")
        after = TaskHandle(plane.runtime.submit(plane.with_payload(task("t2")), arguments), plane.runtime)
        assert after.explain()["sentence"] == "waits for its argument t1.1"
        succeed(plane, whole, ("a", "b"))
        until(lambda: after.state is TaskState.RUNNING)
        assert loaded(plane, after, arguments) == (["b"], {})

    def test_handles_of_another_control_plane_and_of_one_that_ended(self, plane: ControlPlane) -> None:
        with ControlPlane() as other:
            first = other.task("o1")
            kept = put(other, "kept")
            waiting = submit(plane, "t1", first, kept)
            succeed(other, first, "theirs")
            until(lambda: waiting.state is TaskState.RUNNING)
            lost = other.task("o2")
            unlucky = submit(plane, "t2", lost)
        after_the_end = submit(plane, "t3", first, kept)
        until(lambda: after_the_end.state is TaskState.RUNNING)
        values = [pickling.loads(data) for _, data in plane.runtime.payload_cache.objects_of("t3")]
        assert values == ["theirs", "kept"]
        with pytest.raises(TaskCancelledError, match="o2 did not end by itself"):
            unlucky.result(60)


class TestFailures:
    def test_the_error_is_that_very_error(self, plane: ControlPlane) -> None:
        first = plane.task("t1")
        second = submit(plane, "t2", first)
        third = submit(plane, "t3", second)
        fail(plane, first, KeyError("mine"))
        for handle in (second, third):
            with pytest.raises(KeyError, match="mine") as caught:
                handle.result(60)
            assert any("raised in t1 (attempt 1) on cluster 'mac'" in note for note in caught.value.__notes__)
            assert any(f"{handle.id} needed the value" in note for note in caught.value.__notes__)
            assert handle.state is TaskState.FAILED
            assert "its argument" in handle.explain()["sentence"]
        late = submit(plane, "t4", first)
        with pytest.raises(KeyError, match="mine"):
            late.result(60)
        assert len(plane.runtime.payload_cache) == 0

    def test_one_that_was_cancelled(self, plane: ControlPlane) -> None:
        first = plane.task("t1")
        second = submit(plane, "t2", first)
        first.cancel()
        with pytest.raises(TaskCancelledError, match="t1"):
            second.result(60)

    def test_the_dependent_can_be_cancelled_alone(self, plane: ControlPlane) -> None:
        first = plane.task("t1")
        second = submit(plane, "t2", first)
        assert second.accepted(60)
        second.cancel()
        with pytest.raises(TaskCancelledError, match="t2 was cancelled"):
            second.result(60)
        assert not first._item._watchers, "nobody waits there any more"
        succeed(plane, first, 1)
        assert second.state is TaskState.CANCELLED
        assert len(plane.runtime.payload_cache) == 0

    def test_one_that_finds_no_room_waits_for_nothing(self) -> None:
        with ControlPlane(max_queue=1) as plane:
            first = plane.task("t1")
            submit(plane, "t2", first)
            with pytest.raises(QueueFullError):
                submit(plane, "t3", first)
            until(lambda: len(first._item._watchers or ()) == 1)

    def test_the_end_of_the_control_plane_answers_them(self) -> None:
        with ControlPlane() as plane:
            first = plane.task("t1")
            second = submit(plane, "t2", first)
        with pytest.raises(TaskCancelledError, match="shut down"):
            second.result(60)
        assert len(plane.runtime.payload_cache) == 0
        with pytest.raises(SchedulerError, match="was shut down"):
            submit(plane, "t3", first)
        assert len(plane.runtime.payload_cache) == 0

    def test_a_handle_from_before_a_fork_is_refused(self, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        first = plane.task("t1")
        monkeypatch.setattr(plane.runtime, "_process", -1)
        with pytest.raises(SchedulerError, match="forked from"):
            prepare_arguments((first,), {}, "f")
        monkeypatch.undo()


class TestChains:
    @pytest.mark.parametrize("good", [True, False])
    def test_a_thousand_one_after_another(self, plane: ControlPlane, good: bool) -> None:
        first = plane.task("t0")
        chain = [first]
        for number in range(1, 1001):
            chain.append(submit(plane, f"t{number}", chain[-1]))
        if not good:
            fail(plane, first, ValueError("the first"))
            with pytest.raises(ValueError, match="the first"):
                chain[-1].result(30)
            return
        for one in chain:
            succeed(plane, one, one.id)
        assert chain[-1].result() == "t1000"
        until(lambda: len(plane.runtime.payload_cache) == 0)

    def test_ten_thousand_arguments_of_one(self, plane: ControlPlane) -> None:
        many = [put(plane, number) for number in range(9_999)]
        first = plane.task("t1")
        last = submit(plane, "t2", first, *many)
        succeed(plane, first, 1)
        until(lambda: last.state is TaskState.RUNNING)
        assert len(plane.runtime.payload_cache.objects_of("t2")) == 10_000


class TestObjects:
    def test_a_value_that_was_put(self, plane: ControlPlane) -> None:
        kept = put(plane, {"a": [1]})
        assert kept.done()
        assert kept.result(0) == {"a": [1]}
        assert kept.result() is not kept.result(), "each has its own"
        assert kept.exception() is None
        assert (kept.state, kept.explain()["sentence"], repr(kept)) == (
            TaskState.SUCCEEDED,
            "it was put",
            f"<ObjectHandle {kept.id}>",
        )
        kept.cancel()
        received = threading.Event()
        kept.add_done_callback(lambda _: received.set())
        assert received.wait(60)
        with pytest.raises(TaskSubmissionError):
            pickle.dumps(kept)

    async def test_it_can_be_awaited(self, plane: ControlPlane) -> None:
        assert await put(plane, 5) == 5

    def test_nothing_is_kept_once_nobody_needs_it(self, plane: ControlPlane) -> None:
        kept = put(plane, "x" * 1000)
        gone = weakref.ref(kept)
        handle = submit(plane, "t1", kept)
        until(lambda: handle.state is TaskState.RUNNING)
        digest = kept.digest
        del kept
        gc.collect()
        assert gone() is None
        assert plane.runtime.payload_cache.get(digest) == pickling.dumps("x" * 1000), "the task still needs it"
        plane.finish(handle)
        until(lambda: len(plane.runtime.payload_cache) == 0)

    def test_one_value_for_many_tasks_is_cached_once(self, plane: ControlPlane) -> None:
        kept, same = put(plane, "value"), put(plane, "value")
        handles = [submit(plane, f"t{number}", kept if number % 2 else same) for number in range(6)]
        until(lambda: all(one.state is TaskState.RUNNING for one in handles))
        names = {name for one in handles for name, _ in plane.runtime.payload_cache.objects_of(one.id)}
        assert names == {kept.digest}


def test_an_item_that_is_not_taken_leaves_nothing(plane: ControlPlane) -> None:
    first = submit(plane, "t1", put(plane, 1), name="n", idempotency_key="k")
    again = submit(plane, "t2", put(plane, 2), name="n", idempotency_key="k")
    assert again.id == first.id
    assert plane.runtime.payload_cache.objects_of("t2") == []
    assert plane.submit(job("j1")).id == "j1"

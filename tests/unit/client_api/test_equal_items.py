"""Equal items that are joined to one run, and items that come after others, as a program sees them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.handles.handle import JobHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.submission.submission import Submission
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.exception import TaskCancelledError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.common.model.task_description import content_key
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job, task


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as control_plane:
        yield control_plane


def submission(plane: ControlPlane | None = None, **settings: Any) -> Submission:
    payload_cache = PayloadCache() if plane is None else plane.runtime.payload_cache
    return Submission(Settings(**settings), payload_cache, SystemClock(), "cp", ["/home/alice"])


def joined(plane: ControlPlane, key: str, task_id: str) -> TaskHandle:
    handle: TaskHandle = plane.submit(plane.with_payload(task(task_id, content_key=key)))
    return handle


class TestContentKey:
    def test_the_setting_joins_equal_items_and_an_item_may_say_otherwise(self) -> None:
        maker = submission(dedup="content")
        first, again = maker.task(len, ("x",))[0], maker.task(len, ("x",))[0]
        assert first.id != again.id
        assert first.content_key == again.content_key is not None
        assert maker.task(len, ("x",), dedup="none")[0].content_key is None
        assert maker.job("true").content_key == maker.job("true").content_key is not None
        assert submission().task(len, ("x",))[0].content_key is None
        assert submission().task(len, ("x",), dedup="content")[0].content_key == first.content_key

    @pytest.mark.parametrize(
        "changed",
        [
            {"args": ("y",)},
            {"fn": abs},
            {"resource_requirements": {"CPU": 2}},
            {"tags": ["arm64"]},
            {"require_tags": ["arm64"]},
            {"preferred_cluster": "mac"},
            {"fallback": "wait"},
            {"allow_clusters": ["mac"]},
            {"deny_clusters": ["mac"]},
            {"owner": "ada"},
            {"runtime_env": {"env_vars": {"A": "1"}}},
            {"num_returns": 2},
            {"after": ["task-1"]},
            {"start_after": 60},
        ],
        ids=lambda changed: next(iter(changed)),
    )
    def test_changes_that_make_items_differ(self, changed: dict[str, Any]) -> None:
        plain = {"fn": len, "args": ("x",), "dedup": "content"}
        assert self.key(**plain) != self.key(**{**plain, **changed})

    @pytest.mark.parametrize("changed", [{"name": "x"}, {"priority": 5}, {"retries": 2}, {"queue_timeout": 5}])
    def test_changes_that_keep_items_equal(self, changed: dict[str, Any]) -> None:
        plain = {"fn": len, "args": ("x",), "dedup": "content"}
        assert self.key(**plain) == self.key(**plain, **changed)

    def test_jobs_differ_by_what_they_run(self) -> None:
        plain = job("j")
        assert content_key(plain) == content_key(replace(plain, id="other", submitted_at=5.0))
        assert plain.job is not None
        for changed in ({"entrypoint": "ls"}, {"metadata": {"a": "b"}}, {"entrypoint_resources": {"CPU": 1.0}}):
            assert content_key(plain) != content_key(replace(plain, job=replace(plain.job, **changed)))

    def test_handles_among_the_arguments_are_distinguished_and_put_values_by_their_content(
        self, plane: ControlPlane
    ) -> None:
        maker = submission(plane, dedup="content")
        one, two = plane.task("t1"), plane.task("t2")
        keys = [maker.task(len, (handle,))[0].content_key for handle in (one, two, one)]
        assert keys[0] == keys[2] != keys[1]

        def put(value: object) -> ObjectHandle:
            return ObjectHandle(pickling.dumps(value), set(), (), plane.runtime)

        keys = [maker.task(len, (put(value),))[0].content_key for value in (b"a", b"b", b"a")]
        assert keys[0] == keys[2] != keys[1]

    @staticmethod
    def key(fn: Any, args: tuple[Any, ...], **options: Any) -> str:
        key = submission().task(fn, args, **options)[0].content_key
        assert key is not None
        return key


class TestJoining:
    def test_the_second_caller_has_the_first_ones_id_and_result(self, plane: ControlPlane) -> None:
        first = joined(plane, "k", "t1")
        second = joined(plane, "k", "t2")
        assert second.id == first.id == "t1"
        until(lambda: first.state is TaskState.RUNNING)
        assert [order.task_id for order in plane.placed] == ["t1"]
        plane.finish(first)
        assert second.done()
        assert len(plane.runtime.payload_cache) == 0, "the payload of the one that was joined is not kept"

    def test_after_the_end_a_new_one_runs(self, plane: ControlPlane) -> None:
        first = joined(plane, "k", "t1")
        until(lambda: first.state is TaskState.RUNNING)
        plane.finish(first)
        second = joined(plane, "k", "t2")
        assert second.id == "t2"
        until(lambda: second.state is TaskState.RUNNING)

    def test_no_item_joins_one_that_is_being_cancelled(self) -> None:
        with ControlPlane(obedient=False) as plane:
            first = joined(plane, "k", "t1")
            until(lambda: first.state is TaskState.RUNNING)
            first.cancel()
            second = joined(plane, "k", "t2")
            assert second.id == "t2"
            until(lambda: second.state is TaskState.RUNNING)
            first.cancel(force=True)
            until(first.done)
            assert isinstance(first.exception(), TaskCancelledError)
            assert joined(plane, "k", "t3").id == "t2"

    def test_every_one_of_many_threads_gets_an_id_that_runs(self, plane: ControlPlane) -> None:
        handles: list[TaskHandle] = []
        numbers = iter(range(1000))

        def work() -> None:
            for _ in range(25):
                handle = joined(plane, "k", f"t{next(numbers)}")
                handles.append(handle)
                handle.cancel()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for handle in handles:
            until(handle.done)
        assert len(handles) == 100


class TestAfter:
    def test_jobs_and_tasks_wait_for_handles_and_ids(self, plane: ControlPlane) -> None:
        maker = submission(plane)
        first = plane.task("t1")
        second = JobHandle(plane.runtime.submit(maker.job("true", after=[first])), plane.runtime)
        later, _ = maker.task(len, ("x",), after=[second.id], start_after=3600)
        third = TaskHandle(plane.runtime.submit(later), plane.runtime)
        assert third.accepted(60)
        assert second.explain()["code"] == "WAITS_FOR_DEPENDENCIES"
        plane.finish(first)
        until(lambda: second.state is TaskState.RUNNING)
        plane.finish(second)
        until(lambda: third.explain()["code"] == "STARTS_LATER")
        assert later.start_after == pytest.approx(plane.runtime.clock.now() + 3600, abs=60)
        third.cancel()
        until(third.done)

    def test_a_failure_is_passed_on_with_its_reason(self, plane: ControlPlane) -> None:
        first = plane.task("t1")
        second: TaskHandle = plane.submit(plane.with_payload(task("t2", after=("t1",))))
        third: TaskHandle = plane.submit(plane.with_payload(task("t3", after=("t2",))))
        plane.fail(first)
        error = third.exception(10)
        assert isinstance(error, TaskSubmissionError)
        assert "because t2, which it was to run after, failed" in str(error)
        assert isinstance(second.exception(10), TaskSubmissionError)

    def test_a_time_from_now_counts_from_each_call(self) -> None:
        maker = submission()
        template = maker.template(len, None, None, None, {"start_after": 60})
        moments = [maker.build_task(template, ("x",), {})[0].start_after for _ in range(2)]
        assert None not in moments
        assert moments[0] < moments[1]  # type: ignore[operator]  # neither is None

    def test_a_description_survives_being_stored(self) -> None:
        stored = task("t", after=("a", "b"), start_after=5.0, content_key="k").to_dict()
        again = TaskDescription.from_dict({**stored, "after": list(stored["after"])})
        assert (again.after, again.start_after, again.content_key) == (("a", "b"), 5.0, "k")


def test_an_event_of_an_equal_item_changes_nothing(plane: ControlPlane) -> None:
    joined(plane, "k", "t1")
    plane.post(events.Submitted(task("t2", content_key="k")))
    plane.runtime.call_and_wait(lambda: None)
    assert plane.runtime.record("t2") is None

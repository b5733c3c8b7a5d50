"""Making, naming, finding and listing actors."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import RemoteClass
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    TaskSubmissionError,
    TaskTimeoutError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import fleet_control
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt
from tests.unit.client_api.actor_plane import ActorPlane, Counter
from tests.unit.client_api.control_plane import until


class TestWhatIsDescribed:
    def describe(self, plane: ActorPlane, needs: Any = None, **options: Any) -> Any:
        return plane.actors._submission.describe(RemoteClass(Counter), (1,), None, needs, None, options).task

    def test_by_default_it_needs_a_cpu_to_start_and_holds_none(self, plane: ActorPlane) -> None:
        task = self.describe(plane)
        assert (task.kind, task.name, task.requirements, task.actor.placement) == (
            "actor",
            "Counter",
            {},
            {"CPU": 1.0},
        )
        assert (task.retries, task.actor.ray_name, task.actor.ready_timeout) == (0, task.id, 300.0)

    @pytest.mark.parametrize("needs", [{"CPU": 2}, {"num_cpus": 2}])
    def test_actor_holds_its_requirements(self, plane: ActorPlane, needs: Any) -> None:
        task = self.describe(plane, needs)
        assert task.requirements == task.actor.placement == {"CPU": 2.0}

    def test_none_at_all(self, plane: ActorPlane) -> None:
        task = self.describe(plane, {"CPU": 0})
        assert (task.requirements, task.actor.placement) == ({}, {})

    def test_other_resources(self, plane: ActorPlane) -> None:
        task = self.describe(plane, {"GPU": 1})
        assert (task.requirements, task.actor.placement) == ({"GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0})

    def test_a_detached_one_is_known_by_its_name_there(self, plane: ActorPlane) -> None:
        task = self.describe(plane, name="tally", lifetime="detached")
        assert (task.actor.ray_name, task.actor.public_name) == ("tally", "tally")
        assert self.describe(plane, name="tally").actor.ray_name.startswith("actor-cp1-")

    def test_a_class_with_coroutines(self, plane: ActorPlane) -> None:
        class Waiting:
            async def wait(self) -> None: ...

        new = plane.actors._submission.describe(RemoteClass(Waiting), (), None, None, None, {})
        assert new.task.actor is not None
        assert new.task.actor.asynchronous
        assert not self.describe(plane).actor.asynchronous

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"retries": 1}, "retries"),
            ({"max_retries": 1}, "max_restarts"),
            ({"crash_retries": -1}, "crash_retries is -1"),
            ({"dedup": "content"}, "get_if_exists=True"),
            ({"run_timeout": 5}, "ready_timeout"),
            ({"idempotency_key": "k"}, "get_if_exists=True"),
            ({"lifetime": "detached"}, "needs a name"),
            ({"lifetime": "forever"}, "lifetime is 'forever'"),
            ({"name": "x", "lifetime": "detached", "restart_elsewhere": True}, "exclude each other"),
            ({"max_restarts": -2}, "max_restarts is -2"),
            ({"max_restarts": "many"}, "max_restarts is 'many'"),
            ({"max_concurrency": 0}, "max_concurrency is 0"),
            ({"ready_timeout": 0}, "ready_timeout is 0"),
            ({"ready_timeout": "long"}, "ready_timeout is 'long'"),
            ({"get_if_exists": True}, "but no name"),
            ({"name": ""}, "name is ''"),
            ({"max_restart": 1}, "did you mean max_restarts"),
        ],
    )
    def test_invalid_options_are_rejected(self, plane: ActorPlane, options: Any, sentence: str) -> None:
        with pytest.raises(ConfigurationError, match=sentence.replace("(", r"\(")):
            plane.actors.submit(Counter, (), None, None, None, options)
        assert len(plane.runtime.payload_cache) == 0
        assert plane.runtime.unfinished() == []

    @pytest.mark.parametrize("wrong", [Counter(), "Counter", 5, None, len])
    def test_only_classes(self, plane: ActorPlane, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="is not a class"):
            plane.actors.submit(wrong, (), None, None, None, {})

    def test_unpicklable_arguments(self, plane: ActorPlane) -> None:
        with pytest.raises(TaskSubmissionError, match="argument 0 of Counter, a lock"):
            plane.actors.submit(Counter, (threading.Lock(),), None, None, None, {})

    def test_a_constructor_waits_for_its_arguments(self, plane: ActorPlane) -> None:
        task = plane.task("t1")
        actor = plane.actors.submit(Counter, (task,), None, None, None, {})
        until(lambda: actor._item.accepted)
        assert actor.explain()["sentence"] == "waits for its argument t1"
        plane.finish(task)
        until(lambda: actor.state is TaskState.RUNNING)

    def test_until_it_is_ready_its_own_crash_retries_hold(self) -> None:
        with ActorPlane(slow=True) as plane:
            patient, impatient = plane.actor(), plane.actor(crash_retries=0)
            plane.die(patient)
            plane.die(impatient)
            until(lambda: impatient.state is TaskState.FAILED)
            until(lambda: patient._item.attempt == 2)
            assert "a higher crash_retries" in str(error_of(impatient._item.outcome))

    def test_one_that_comes_after_another_item(self, plane: ActorPlane) -> None:
        task = plane.task("t1")
        actor = plane.actors.submit(Counter, (), None, None, None, {"after": [task], "dedup": "none"})
        until(lambda: actor._item.accepted)
        assert actor.explain()["code"] == "WAITS_FOR_DEPENDENCIES"
        later = plane.actors.submit(Counter, (), None, None, None, {"after": ["t1"], "start_after": 3600})
        plane.finish(task)
        until(lambda: actor.state is TaskState.RUNNING)
        until(lambda: later.explain()["code"] == "STARTS_LATER")

    def test_options_of_the_class_and_those_of_the_call(self, plane: ActorPlane) -> None:
        cls = RemoteClass(Counter, num_cpus=2, name="one", tags=["x"], max_restarts=3)
        actor = plane.actors.submit(cls, (), None, None, None, {"name": "two"})
        task = actor._item.task
        assert (task.requirements, task.tags) == ({"CPU": 2.0}, ("x",))
        assert task.actor is not None
        assert (task.actor.public_name, task.actor.max_restarts) == ("two", 3)
        other = plane.actors.submit(cls, (), None, {"CPU": 1}, ["y"], {})
        assert (other._item.task.requirements, other._item.task.tags) == ({"CPU": 1.0}, ("y",))


class TestNames:
    def test_a_name_is_unique_among_the_living(self, plane: ActorPlane) -> None:
        first = plane.actor(name="tally")
        with pytest.raises(ConfigurationError, match="a living actor 'tally' already: Counter actor-cp1-1 on mac"):
            plane.actor(name="tally")
        assert plane.actors.get("tally") is first
        assert plane.actor(name="tally", get_if_exists=True) is first
        first.kill()
        until(lambda: first.state is TaskState.CANCELLED)
        second = plane.actor(name="tally")
        assert plane.actors.get("tally") is second
        assert second.id != first.id

    def test_many_threads_want_the_same(self, plane: ActorPlane) -> None:
        with ThreadPoolExecutor(8) as pool:
            handles = list(pool.map(lambda _: plane.actor(name="tally", get_if_exists=True), range(16)))
        assert len({id(handle) for handle in handles}) == 1
        assert len(plane.placed) == 1

    def test_an_unknown_one(self, plane: ActorPlane) -> None:
        plane.actor(name="tally")
        with pytest.raises(UnknownItemError, match="no living actor 'taly'.*known names: tally") as caught:
            plane.actors.get("taly")
        assert "did you mean 'tally'" in str(caught.value)
        assert "no answer from mac" in str(caught.value), "its one cluster is at a closed port"
        for wrong in ("", None, 5):
            with pytest.raises(ConfigurationError, match="not the name of an actor"):
                plane.actors.get(wrong)  # type: ignore[arg-type]  # that is the point


class Lingering(ActorPlane):
    """Actors that were killed take their time."""

    def cancel(self, order: CancelAttempt) -> None:
        pass

    def end(self, actor: ActorHandle) -> None:
        self.post(events.AttemptFinished(actor.id, 1, "cancelled"))
        until(lambda: actor.state is TaskState.CANCELLED)


class TestNamesOfTheKilled:
    def test_a_name_is_free_as_soon_as_its_actor_was_killed(self) -> None:
        with Lingering() as plane:
            first = plane.actor(name="tally")
            first.kill()
            with pytest.raises(UnknownItemError, match="no actor of this program has a name"):
                plane.actors.get("tally")
            second = plane.actor(name="tally")
            assert first.state is TaskState.RUNNING
            assert plane.actors.get("tally") is second
            assert plane.actor(name="tally", get_if_exists=True) is second
            rows = {row["id"]: row["message"] for row in plane.runtime.actor_rows()}
            assert rows[first.id] == "cancellation was requested: it was killed"
            plane.end(first)
            assert plane.actors.get("tally") is second, "the end of the first one does not take its name away"
            second.kill()
            plane.end(second)

    def test_one_that_would_be_taken_over_is_made_anew(self) -> None:
        with Lingering() as plane:
            first = plane.actor(name="tally")
            first.kill()
            second = plane.actor(name="tally", get_if_exists=True)
            assert second is not first

    def test_a_detached_one_that_dies_is_not_found_on_its_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Lingering() as plane:
            with monkeypatch.context() as patch:
                patch.setattr(plane.runtime, "clients", Dashboards())
                first = plane.actor(name="tally", lifetime="detached")
                patch.setattr(plane.runtime, "clients", Dashboards(mac=["tally"]))
                first.kill()
                with pytest.raises(UnknownItemError):
                    plane.actors.get("tally")
                second = plane.actor(name="tally", lifetime="detached")
                assert plane.actors.get("tally") is second
            plane.end(first)


class Dashboards:
    """Which clusters have which detached actors."""

    def __init__(self, **names: list[str]) -> None:
        self.names = names

    def client(self, cluster: str) -> Any:
        dashboards = self

        class Client:
            async def has_detached_actor(self, name: str) -> bool:
                return name in dashboards.names.get(cluster, [])

        return Client()


class TestDetached:
    def test_one_that_another_program_left_is_found(self, plane: ActorPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plane.runtime, "clients", Dashboards(mac=["tally"]))
        actor = plane.actors.get("tally")
        task = actor._item.task
        assert task.actor is not None
        assert (task.actor.adopt, task.actor.ray_name, task.preferred_cluster, task.fallback) == (
            True,
            "tally",
            "mac",
            "wait",
        )
        assert (task.requirements, task.actor.placement) == ({}, {})
        assert plane.actors.get("tally") is actor
        until(lambda: actor.state is TaskState.RUNNING)
        actor.whatever.remote(1)
        (call,) = plane.sent(1)
        assert call.method is not None
        assert call.method.method == "whatever"
        assert not hasattr(actor, "_private")
        monkeypatch.undo()

    def test_its_name_is_taken(self, plane: ActorPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plane.runtime, "clients", Dashboards(mac=["tally"]))
        options = {"name": "tally", "lifetime": "detached"}
        with pytest.raises(ConfigurationError, match="'tally' already: a detached one on mac"):
            plane.actors.submit(Counter, (), None, None, None, options)
        actor = plane.actors.submit(Counter, (), None, None, None, {**options, "get_if_exists": True})
        assert actor._item.task.actor is not None
        assert actor._item.task.actor.adopt
        with pytest.raises(AttributeError, match="did you mean add"):
            actor.ad  # noqa: B018 - its class is known
        monkeypatch.undo()

    def test_a_cluster_that_cannot_be_asked_is_named_and_stops_nobody(
        self, plane: ActorPlane, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, logger="ray_multicluster_scheduler"):
            actor = plane.actor(name="tally", lifetime="detached")
        assert actor.state is TaskState.RUNNING
        (record,) = [one for one in caplog.records if "tally" in one.getMessage()]
        assert "mac: " in record.getMessage()
        assert record.levelno == logging.WARNING

    def test_the_query_takes_a_few_seconds_at_most(
        self, plane: ActorPlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Silent:
            async def has_detached_actor(self, name: str) -> bool:
                await asyncio.sleep(60)
                return True

        monkeypatch.setattr(plane.runtime, "clients", SimpleNamespace(client=lambda cluster: Silent()))
        monkeypatch.setattr(fleet_control, "SEARCH_TIMEOUT_S", 0.05)
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, logger="ray_multicluster_scheduler"):
            plane.actors.submit(Counter, (), None, None, None, {"name": "tally", "lifetime": "detached"})
        assert time.monotonic() - began < 30
        assert "mac: no answer within 0.05 s" in caplog.text
        monkeypatch.undo()

    def test_on_several_clusters_one_must_be_named(self, plane: ActorPlane) -> None:
        with pytest.raises(ConfigurationError, match="on each of linux, mac"):
            fleet_control.choose_cluster("tally", ["linux", "mac"])
        with ClusterContextManager.use("mac"):
            assert fleet_control.choose_cluster("tally", ["linux", "mac"]) == "mac"

    def test_it_is_left_alone_at_the_end(self) -> None:
        with ActorPlane() as plane:
            actor = plane.actor(name="tally", lifetime="detached")
        assert actor.state is TaskState.CANCELLED
        explanation = actor.explain()
        assert explanation["code"] == "ABANDONED"
        assert "detached and continues on mac" in explanation["sentence"]


class TestLooking:
    def test_list(self, plane: ActorPlane) -> None:
        first, second = plane.actor(name="tally"), plane.actor()
        second.kill()
        until(lambda: second.state is TaskState.CANCELLED)
        rows = plane.runtime.actor_rows()
        assert [(row["id"], row["name"], row["class"], row["state"], row["cluster"]) for row in rows] == [
            (first.id, "tally", "Counter", "RUNNING", "mac"),
            (second.id, None, "Counter", "CANCELLED", "mac"),
        ]

    def test_explain(self, plane: ActorPlane) -> None:
        actor = plane.actor(max_restarts=2, resource_requirements={"GPU": 0, "CPU": 2})
        explanation = actor.explain()
        assert (explanation["kind"], explanation["state"], explanation["cluster"]) == ("actor", "RUNNING", "mac")
        assert explanation["actor"]["needs_to_start"] == explanation["actor"]["holds"] == {"CPU": 2.0}
        assert explanation["actor"]["max_restarts"] == 2
        actor.add.remote(1)
        plane.sent(1)
        explanation = actor.explain()
        assert (explanation["calls_waiting"], explanation["calls_unanswered"]) == (0, 1)

    def test_its_room_is_held_and_given_back(self, plane: ActorPlane) -> None:
        actor = plane.actor(resource_requirements={"CPU": 8})
        waiting = plane.submit(plane.with_payload(plane_task("t1")))
        until(lambda: waiting.state is TaskState.QUEUED)
        actor.kill()
        until(lambda: waiting.state is TaskState.RUNNING)

    def test_one_that_says_nothing_holds_nothing(self, plane: ActorPlane) -> None:
        for _ in range(10):
            plane.actor()
        task = plane.submit(plane.with_payload(plane_task("t1", 8)))
        until(lambda: task.state is TaskState.RUNNING)


def plane_task(task_id: str, cpus: float = 1) -> Any:
    from tests.unit.lifecycle.driver import task

    return task(task_id, cpus)


class TestWaiting:
    def test_one_that_does_not_get_ready_is_given_up(self) -> None:
        with ActorPlane(slow=True) as plane:
            with pytest.raises(TaskTimeoutError, match="was not ready within its ready_timeout of 0.05 s"):
                plane.actors.submit(Counter, (), None, None, None, {"ready_timeout": 0.05}, wait=True)
            (row,) = plane.runtime.actor_rows()
            assert (row["class"], row["state"]) == ("Counter", "FAILED")

    def test_the_queue_is_not_its_constructor(self, plane: ActorPlane) -> None:
        """It may wait for room as long as it takes: only what happens on the cluster counts."""
        task = plane.submit(plane.with_payload(plane_task("t1", 8)))
        until(lambda: task.state is TaskState.RUNNING)
        timer = threading.Timer(1.5, plane.finish, (task,))
        timer.start()
        try:
            actor = plane.actors.submit(Counter, (), None, None, None, {"ready_timeout": 1.0}, wait=True)
            assert actor.state is TaskState.RUNNING
        finally:
            timer.join()

    def test_but_not_those_of_another_user(self) -> None:
        with ActorPlane(slow=True) as plane:
            first = plane.actor(name="tally", ready_timeout=0.5)
            with pytest.raises(TaskTimeoutError, match="not ready"):
                plane.actors.submit(Counter, (), None, None, None, {"name": "tally", "get_if_exists": True}, wait=True)
            plane.settle()
            assert "cancellation was requested: it was killed" not in str(first.explain()["history"])

    def test_one_that_gets_ready(self, plane: ActorPlane) -> None:
        actor = plane.actors.submit(Counter, (), None, None, None, {}, wait=True)
        assert actor.state is TaskState.RUNNING

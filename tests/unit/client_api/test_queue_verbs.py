"""hold, release, set_priority, pause_queue and resume_queue as a program uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import NativeTaskHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.jobs import NativeJobHandle, NativeJobs
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.current_item import CurrentItem, set_current
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model import TaskState
from tests.unit.client_api.actor_plane import ActorPlane, Counter
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.client_api.verb_parameters import check_same_parameters
from tests.unit.lifecycle.driver import task

VERBS = ("hold", "release", "set_priority", "pause_queue", "resume_queue", "owner_limits", "set_owner_limits")
VERBS += ("reset_owner_limits",)


@pytest.fixture
def scheduler(plane: ActorPlane) -> Iterator[UnifiedScheduler]:
    """The shared one; its control plane is the one that the test moves."""
    scheduler = UnifiedScheduler(plane.runtime.config)
    scheduler._runtime, scheduler._submission = plane.runtime, plane.submission
    before = execution_context.exchange_shared(scheduler)
    yield scheduler
    execution_context.exchange_shared(before)


@pytest.fixture
def inside() -> Iterator[CurrentItem]:
    item = CurrentItem("task-1", 1, 7, "mac")
    set_current(item)
    yield item
    set_current(None)


def waiting(plane: ControlPlane, task_id: str, **values: Any) -> TaskHandle:
    """One that wants the whole cluster and is queued."""
    handle: TaskHandle = plane.submit(plane.with_payload(task(task_id, 8, **values)))
    until(lambda: handle.state is TaskState.QUEUED)
    return handle


def settle(plane: ControlPlane) -> None:
    """Let the control plane handle what it received."""
    for _ in range(5):
        plane.runtime.call_and_wait(lambda: None)


@pytest.mark.usefixtures("scheduler")
class TestExplain:
    def test_a_handle_is_as_good_as_its_id(self, plane: ActorPlane) -> None:
        one, run, actor = plane.task("t1"), plane.job("j1"), plane.actor(Counter)
        call = actor.add.remote(1)
        for handle in (one, run, actor, call):
            assert api.explain(handle)["id"] == api.explain(handle.id)["id"] == handle.id

    def test_it_prints_itself_for_people(self, plane: ActorPlane) -> None:
        actor = plane.actor(Counter)
        assert str(actor.explain()).startswith(f"{actor.id} (actor Counter) is RUNNING on mac\n")
        assert actor.explain()["calls_waiting"] == 0
        call = actor.add.remote(1)
        assert str(call.explain()).startswith(f"{call.id} (call ")

    @pytest.mark.parametrize("wrong", [3, None, ""])
    def test_explain_of_a_non_item_is_rejected(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"explain was given {wrong!r}, which is not an item"):
            api.explain(wrong)


@pytest.mark.usefixtures("scheduler")
class TestOneItem:
    def test_wrong_words_and_numbers(self, plane: ActorPlane) -> None:
        one = plane.task("t1")
        for wrong in (lambda: api.set_priority(one, 10**7), lambda: one.set_priority(-(10**7))):
            with pytest.raises(ConfigurationError, match="between -1000000 and 1000000"):
                wrong()
        for hold in (lambda: api.hold(one, 5), lambda: one.hold(5)):  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="reason is 5"):
                hold()

    def test_no_item_waits_for_the_success_of_an_actor(self, plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
        actor = plane.actor(Counter)
        for after in (actor, actor.id):
            with pytest.raises(ConfigurationError, match=f"after names {actor.id}, which is an actor"):
                scheduler.submit_task_async(len, ("x",), after=[after])
            with pytest.raises(ConfigurationError, match="which is an actor"):
                scheduler.submit_job_async("true", after=[after])

    def test_it_is_held_until_it_is_released(self, plane: ActorPlane) -> None:
        first = plane.task("t1", cpus=8)
        held, other = waiting(plane, "t2"), waiting(plane, "t3")
        api.hold("t2", "the data is not there yet")
        settle(plane)
        assert "the data is not there yet" in held.explain()["sentence"]
        plane.finish(first)
        until(lambda: other.state is TaskState.RUNNING)
        plane.finish(other)
        settle(plane)
        assert held.state is TaskState.QUEUED
        api.release("t2")
        until(lambda: held.state is TaskState.RUNNING)

    def test_by_its_handle(self, plane: ActorPlane) -> None:
        first = plane.task("t1", cpus=8)
        held = waiting(plane, "t2")
        held.hold()
        plane.finish(first)
        settle(plane)
        assert held.state is TaskState.QUEUED
        held.release()
        until(lambda: held.state is TaskState.RUNNING)

    @pytest.mark.parametrize("by_handle", [True, False])
    def test_another_priority_is_another_place(self, plane: ActorPlane, by_handle: bool) -> None:
        first = plane.task("t1", cpus=8)
        early, late = waiting(plane, "t2"), waiting(plane, "t3")
        if by_handle:
            late.set_priority(5)
        else:
            api.set_priority("t3", 5)
        plane.finish(first)
        until(lambda: late.state is TaskState.RUNNING)
        assert early.state is TaskState.QUEUED

    def test_finished_items_are_not_changed(self, plane: ActorPlane) -> None:
        handle = plane.task("t1")
        plane.finish(handle)
        api.hold(handle)
        api.release("t1")
        api.set_priority(handle, 7)
        settle(plane)
        assert handle.explain()["state"] == "SUCCEEDED"
        assert plane.task("t2").state is TaskState.RUNNING, "the control plane goes on"

    def test_an_actor_that_waits(self, plane: ActorPlane) -> None:
        first = plane.task("t1", cpus=8)
        actor = plane.actors.submit(Counter, (), None, {"CPU": 8}, None, {})
        until(lambda: actor.state is TaskState.QUEUED)
        api.hold(actor, "not yet")
        plane.finish(first)
        settle(plane)
        assert actor.state is TaskState.QUEUED
        api.release(actor)
        until(lambda: actor.state is TaskState.RUNNING)


class TestQueues:
    @pytest.mark.parametrize("what", [{"cluster": "mac"}, {"owner": "ada"}])
    def test_a_paused_queue_starts_nothing_new_until_it_is_resumed(
        self, plane: ActorPlane, scheduler: UnifiedScheduler, what: dict[str, str]
    ) -> None:
        running = plane.task("t1", owner="ada")
        api.pause_queue(**what, reason="we move house")
        handle: TaskHandle = plane.submit(plane.with_payload(task("t2", owner="ada")))
        settle(plane)
        assert (running.state, handle.state) == (TaskState.RUNNING, TaskState.QUEUED)
        assert "we move house" in handle.explain()["sentence"]
        api.resume_queue(**what)
        until(lambda: handle.state is TaskState.RUNNING)

    def test_others_go_on_while_an_owner_is_paused(self, plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
        scheduler.pause_queue(owner="ada")
        assert plane.task("t1", owner="bob").state is TaskState.RUNNING
        scheduler.resume_queue(owner="ada")

    @pytest.mark.parametrize(
        ("given", "output"),
        [
            ({"cluster": 5}, "cluster is 5"),
            ({"cluster": ""}, "cluster is ''"),
            ({"owner": 5}, "owner is 5"),
            ({"cluster": "mac", "reason": 5}, "reason is 5"),
        ],
    )
    def test_invalid_reasons_are_rejected(
        self, scheduler: UnifiedScheduler, given: dict[str, Any], output: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=output):
            scheduler.pause_queue(**given)

    @pytest.mark.parametrize("verb", ["pause_queue", "resume_queue"])
    def test_exactly_one_queue_is_named(self, scheduler: UnifiedScheduler, verb: str) -> None:
        for given, sentence in (
            ({}, "neither a cluster nor an owner"),
            ({"cluster": "mac", "owner": "ada"}, "both a cluster and an owner"),
            ({"owner": ""}, "owner is ''"),
            ({"cluster": "mca"}, "There is no cluster 'mca'"),
        ):
            with pytest.raises(ConfigurationError, match=sentence):
                getattr(scheduler, verb)(**given)


class TestLimits:
    def test_an_owner_may_have_more_or_less_from_now_on(self, plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
        api.set_owner_limits("ada", max_running=1, weight=2)
        running = plane.task("t1", owner="ada")
        handle: TaskHandle = plane.submit(plane.with_payload(task("t2", owner="ada")))
        settle(plane)
        assert (running.state, handle.state) == (TaskState.RUNNING, TaskState.QUEUED)
        assert "its max_running is 1" in handle.explain()["sentence"]
        limits = {"weight": 2.0, "max_queued": None, "max_running": 1, "max_gpus": None, "max_priority": None}
        assert api.owner_limits("ada") == limits
        api.reset_owner_limits("ada")
        until(lambda: handle.state is TaskState.RUNNING)
        assert api.owner_limits("ada") == {**limits, "weight": 1.0, "max_running": None}

    def test_the_highest_priority_is_the_one_of_now(self, scheduler: UnifiedScheduler) -> None:
        api.set_owner_limits("ada", max_priority=3)
        with pytest.raises(ConfigurationError, match="priority is 4, and ada may request 3 at most"):
            scheduler.submit_task_async(len, ("x",), owner="ada", priority=4)
        api.set_owner_limits("ada", max_priority=4)
        scheduler.submit_task_async(len, ("x",), owner="ada", priority=4)

    def test_a_failed_machine_blocks_no_caller(self, plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
        plane.runtime.call_and_wait(lambda: plane.runtime.manager.fail(ZeroDivisionError("ours")))
        scheduler.set_owner_limits("ada", weight=2)
        assert scheduler.owner_limits("ada")["weight"] == 1

    @pytest.mark.parametrize(
        ("owner", "limits", "output"),
        [
            ("", {}, "owner is ''"),
            (5, {}, "owner is 5"),
            ("ada", {"max_runing": 1}, "An owner has no limit 'max_runing' .did you mean 'max_running'"),
            ("ada", {"max_running": -1}, "max_running is '-1': it should be greater than or equal to 0"),
            ("ada", {"max_running": "many"}, "max_running is 'many'"),
            ("ada", {"weight": 0}, "weight is '0'"),
            ("ada", {"weight": float("inf")}, "weight is 'inf': it should be less than or equal to 1000000"),
            ("ada", {"max_gpus": float("nan")}, "max_gpus is 'nan'"),
        ],
    )
    def test_invalid_limits_are_rejected(
        self, scheduler: UnifiedScheduler, owner: Any, limits: dict[str, Any], output: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=output):
            scheduler.set_owner_limits(owner, **limits)


class TestErrors:
    @pytest.mark.parametrize("verb", ["hold", "release", "set_priority"])
    def test_unknown_ids_and_what_is_no_item(self, plane: ActorPlane, scheduler: UnifiedScheduler, verb: str) -> None:
        more = (1,) if verb == "set_priority" else ()
        with pytest.raises(UnknownItemError, match="There is no item 'nobody'"):
            getattr(scheduler, verb)("nobody", *more)
        for wrong in (7, None, ""):
            with pytest.raises(ConfigurationError, match=f"{verb} was given"):
                getattr(scheduler, verb)(wrong, *more)
        call = plane.actor().add.remote(1)
        with pytest.raises(ConfigurationError, match="call of an actor's method"):
            getattr(scheduler, verb)(call.id, *more)
        with pytest.raises(ConfigurationError, match="not an item"):
            getattr(scheduler, verb)(call, *more)

    def test_a_part_of_a_call_is_no_item_either(self, plane: ActorPlane) -> None:
        part = plane.actor().pair.options(num_returns=2).remote()[0]
        with pytest.raises(ConfigurationError, match="hold was given"):
            part.hold()

    def test_a_priority_is_a_number(self, plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
        handle = plane.task("t1")
        for wrong in ("high", float("nan"), float("inf"), True):
            with pytest.raises(ConfigurationError, match="priority is"):
                scheduler.set_priority("t1", wrong)  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(ConfigurationError, match="priority is"):
                handle.set_priority(wrong)  # type: ignore[arg-type]  # wrong on purpose

    def test_before_and_after_its_life(self, plane: ActorPlane) -> None:
        with pytest.raises(UnknownItemError):
            UnifiedScheduler(plane.runtime.config).hold("task-1")
        handle = plane.task("t1")
        plane.runtime.close()
        with pytest.raises(SchedulerError, match="was shut down"):
            handle.hold()


class TestInsideOfACluster:
    def test_the_verbs_are_refused_with_a_sentence(self, inside: CurrentItem) -> None:
        calls = {
            "hold": ("x",),
            "release": ("x",),
            "set_priority": ("x", 1),
            "pause_queue": ("mac",),
            "resume_queue": ("mac",),
            "owner_limits": ("ada",),
            "set_owner_limits": ("ada",),
            "reset_owner_limits": ("ada",),
        }
        for verb, arguments in calls.items():
            with pytest.raises(ConfigurationError, match=f"{verb} cannot be used inside cluster 'mac'"):
                getattr(api, verb)(*arguments)
        for handle in (NativeTaskHandle(None, "f", inside), NativeJobHandle("j", NativeJobs(), inside)):
            for verb, arguments in (("hold", ()), ("release", ()), ("set_priority", (1,))):
                with pytest.raises(ConfigurationError, match=f"{verb} cannot be used inside cluster 'mac'"):
                    getattr(handle, verb)(*arguments)

    def test_they_are_called_the_same_way_on_both_sides(self) -> None:
        check_same_parameters(VERBS)

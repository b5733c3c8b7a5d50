"""submit_gang as a program uses it: what is refused, what is sent, and one fate for all members."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler import GangMember, member, remote
from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.gangs.gang_submission import GangSubmission, NewGangItem, handles_of
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.scheduler import NativeScheduler
from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ConfigurationError,
    TaskSubmissionError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.gang_values import joined
from ray_multicluster_scheduler.common.model import FailureClass, GangDescription, TaskState
from ray_multicluster_scheduler.control_plane.runtime import local_queries, shutdown_report
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.client_api.actor_plane import ActorPlane, Counter
from tests.unit.client_api.control_plane import until

pytestmark = pytest.mark.usefixtures("leak_check")


def described(plane: ActorPlane, members: Any, strategy: Any = "PACK", **options: Any) -> NewGangItem:
    runtime = plane.runtime
    submission = GangSubmission(runtime.config.settings, runtime.clock, ["/home/me"], plane.submission.new_id)
    return submission.describe(members, strategy, options.pop("tags", None), options)


def gang_of(new: NewGangItem) -> GangDescription:
    assert new.task.gang is not None
    return new.task.gang


def submitted(plane: ActorPlane, members: Any, **options: Any) -> TaskHandle:
    new = described(plane, members, **options)
    item = plane.runtime.submit(new.put_payloads(plane.runtime.payload_cache), new.arguments)
    return TaskHandle(item, plane.runtime)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("members", "output"),
        [
            ([], "no members"),
            ("ab", "not a list of members"),
            (3, "not a list of members"),
            (member(len, "x"), "not a list of members"),
            ([member(len, "x"), 3], "Member 1 of the gang is 3 .int."),
            ([member(len, "x"), Counter], "all tasks or all actors"),
            ([member(3)], "Member 0 of the gang is 3 .int., neither a function nor a class"),
            ([member(len, "x", resource_requirements={"CPU": 0})], "requests nothing"),
            ([member(len, "x", resource_requirements={"CPU": "a"})], "is 'a', not a number"),
            ([remote(num_cpus=1, retries=2)(lambda: 1)], "the option retries"),
            ([remote(max_restarts=1, num_cpus=1)(Counter)], "the option max_restarts"),
            ([lambda: (yield 1)], "is a generator"),
        ],
    )
    def test_wrong_members(self, plane: ActorPlane, members: Any, output: str) -> None:
        with pytest.raises(ConfigurationError, match=output):
            described(plane, members)
        assert len(plane.runtime.payload_cache) == 0

    @pytest.mark.parametrize(
        ("options", "output"),
        [
            ({"strategy": "LOOSE"}, "strategy is 'LOOSE'"),
            ({"prio": 3}, "no option 'prio'.*did you mean priority"),
            ({"ready_timeout": 3.0}, "ready_timeout"),
            ({"resource_requirements": {"CPU": 2}}, "resource_requirements"),
            ({"priority": 1_000_001}, "between -1000000 and 1000000"),
            ({"fallback": "never"}, "fallback is 'never'"),
        ],
    )
    def test_wrong_options(self, plane: ActorPlane, options: dict[str, Any], output: str) -> None:
        with pytest.raises(ConfigurationError, match=output):
            described(plane, [member(len, "x")], **options)

    @pytest.mark.parametrize(
        ("options", "output"),
        [
            ({"retries": 1}, "retries"),
            ({"ready_timeout": "x"}, "is 'x'"),
            ({"idempotency_key": "k"}, "gang of actors.*keep the handles"),
            ({"dedup": "content"}, "gang of actors.*keep the handles"),
        ],
    )
    def test_wrong_options_of_actors(self, plane: ActorPlane, options: dict[str, Any], output: str) -> None:
        with pytest.raises(ConfigurationError, match=output):
            described(plane, [Counter], **options)

    def test_unpicklable_members(self, plane: ActorPlane) -> None:
        with pytest.raises(TaskSubmissionError, match="argument 0 of len"):
            described(plane, [member(len, (one for one in "ab"))])

    def test_inside_of_a_cluster_it_is_not_there(self) -> None:
        scheduler = object.__new__(NativeScheduler)
        for verb in (scheduler.submit_gang, scheduler.submit_gang_async):
            with pytest.raises(ConfigurationError, match="submit_gang"):
                verb([len])


class TestTheDescription:
    def test_each_member_has_its_own_needs_and_the_item_their_sum(self, plane: ActorPlane) -> None:
        @remote(num_cpus=2, num_gpus=1)
        def decorated() -> None:
            pass

        members = [len, decorated, member(len, "x", resource_requirements={"memory": 100})]
        new = described(plane, members, "SPREAD", name="mine", priority=3, tags=["a"])
        gang = gang_of(new)
        assert [one.requirements for one in gang.members] == [
            {"CPU": 1.0},
            {"CPU": 2.0, "GPU": 1.0},
            {"CPU": 1.0, "memory": 100},
        ]
        assert new.task.requirements == {"CPU": 4.0, "GPU": 1.0, "memory": 100}
        assert (new.task.kind, new.task.name, new.task.priority, new.task.tags) == ("gang", "mine", 3, ("a",))
        assert (gang.of, gang.strategy) == ("task", "SPREAD")
        assert new.task.id.startswith("gang-")

    def test_the_fields_of_pools_are_those_of_the_whole_gang(self, plane: ActorPlane) -> None:
        fields = {"labels": {"team": "nlp"}, "pool": "nlp", "preemptible": True, "min_runtime_s": 60.0}
        task = described(plane, [len, len], priority=2.5, **fields).task
        assert (task.priority, task.pool_fields) == (2.5, fields)

    def test_names(self, plane: ActorPlane) -> None:
        assert described(plane, [len, len]).task.name == "2 × len"
        assert described(plane, [len, sum, len]).task.name == "len, sum"

    def test_arguments_are_each_ones_own(self, plane: ActorPlane) -> None:
        new = described(plane, [member(len, "/home/me/a"), GangMember(len, (), {"x": "/home/me/b"}, {"CPU": 2})])
        first, second = gang_of(new).members
        new.put_payloads(plane.runtime.payload_cache)
        assert pickling.loads(plane.runtime.payload_cache.get(first.arguments_digest)) == (("/home/me/a",), {})
        assert pickling.loads(plane.runtime.payload_cache.get(second.arguments_digest)) == ((), {"x": "/home/me/b"})
        assert new.task.home_paths == ("/home/me/a", "/home/me/b")
        assert new.task.arguments_bytes == first.arguments_bytes + second.arguments_bytes

    def test_actors_need_a_cpu_that_they_keep(self, plane: ActorPlane) -> None:
        class Async:
            async def work(self) -> None:
                pass

        gang = gang_of(described(plane, [Counter, member(remote(num_gpus=1)(Counter)), Async]))
        assert gang.of == "actor"
        assert [one.requirements for one in gang.members] == [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0}]
        assert [one.asynchronous for one in gang.members] == [False, False, True]
        assert gang_of(described(plane, [Counter], ready_timeout=None)).ready_timeout is None


class TestTasks:
    def test_the_values_come_as_a_list_and_nothing_stays_cached(self, plane: ActorPlane) -> None:
        handle = submitted(plane, [member(len, "ab"), member(len, "abc")])
        until(lambda: handle.state is TaskState.RUNNING)
        payload = joined([pickling.dumps(2), pickling.dumps(3)])
        plane.runtime.call_and_wait(
            lambda: plane.runtime.collector.finished("mac", CallResult(handle.id, 1, "succeeded", payload))
        )
        assert handle.result(60) == [2, 3]
        assert len(plane.runtime.payload_cache) == 0

    def test_an_error_names_its_origin(self, plane: ActorPlane) -> None:
        handle = submitted(plane, [member(len, "ab"), member(len, "abc")])
        until(lambda: handle.state is TaskState.RUNNING)
        result = CallResult(
            handle.id,
            1,
            "failed",
            pickling.dumps(ValueError("no")),
            FailureClass.USER,
            "ValueError",
            message="member 1 (len) failed: ValueError: no",
            member=1,
        )
        plane.runtime.call_and_wait(lambda: plane.runtime.collector.finished("mac", result))
        with pytest.raises(ValueError, match="no") as raised:
            handle.result(60)
        assert f"raised in member 1 of {handle.id} (attempt 1)" in raised.value.__notes__[0]

    def test_the_same_key_is_the_same_gang(self, plane: ActorPlane) -> None:
        first = submitted(plane, [len, len], idempotency_key="k")
        assert submitted(plane, [len, len], idempotency_key="k").id == first.id
        assert submitted(plane, [len, len]).id != first.id

    def test_equal_content_is_one_run_if_asked_for(self, plane: ActorPlane) -> None:
        first = submitted(plane, [member(len, "a"), len], dedup="content")
        assert submitted(plane, [member(len, "a"), len], dedup="content").id == first.id
        assert submitted(plane, [member(len, "b"), len], dedup="content").id != first.id

    def test_handles_among_arguments_are_waited_for_and_each_member_gets_its_own(self, plane: ActorPlane) -> None:
        one, two = plane.task("one"), plane.task("two")
        handle = submitted(plane, [member(len, one), member(max, two, one)])
        assert handle.explain()["state"] == "PENDING"
        for source, value in ((one, b"1"), (two, b"2")):
            answer = CallResult(source.id, 1, "succeeded", pickling.dumps(value))
            plane.runtime.call_and_wait(lambda answer=answer: plane.runtime.collector.finished("mac", answer))  # type: ignore[misc]
        until(lambda: handle.state is TaskState.RUNNING)
        task = plane.runtime.machine.record(handle.id).task
        assert task.gang is not None
        assert [each.objects for each in task.gang.members] == [1, 2]
        values = [pickling.loads(data) for _, data in plane.runtime.payload_cache.objects_of(handle.id)]
        assert values == [b"1", b"2", b"1"]
        handle.cancel()
        until(handle.done)
        assert len(plane.runtime.payload_cache) == 0


class TestActors:
    @pytest.fixture
    def pair(self, plane: ActorPlane) -> list[ActorHandle]:
        new = described(plane, [member(Counter, 1), member(Counter, 2)])
        item = plane.runtime.submit(new.put_payloads(plane.runtime.payload_cache), new.arguments)
        handles = handles_of(item, plane.runtime, [part.methods for part in new.parts])
        return [ActorHandle.ready(handle, 5) for handle in handles]

    def gang_id(self, pair: list[ActorHandle]) -> str:
        return pair[0]._item.scheduled_id

    def test_calls_go_to_each_by_its_own_name(self, plane: ActorPlane, pair: list[ActorHandle]) -> None:
        first, second = pair
        calls = [second.add.remote(5), first.add.remote(6), second.add.remote(7)]
        sent = plane.sent(3)
        gang = self.gang_id(pair)
        assert {(one.method.actor_id, one.method.number, one.method.gang_id) for one in sent if one.method} == {
            (f"{gang}.1", 0, gang),
            (f"{gang}.0", 0, gang),
            (f"{gang}.1", 1, gang),
        }
        plane.answer(calls[0].id, "done")
        assert calls[0].result(60) == "done"

    def test_they_are_where_the_gang_is(self, plane: ActorPlane, pair: list[ActorHandle]) -> None:
        assert [(one.cluster, one.attempt, one.state) for one in pair] == [("mac", 1, TaskState.RUNNING)] * 2
        assert pair[1].explain()["id"] == self.gang_id(pair)
        rows = [(row["id"], row["class"], row["state"]) for row in _rows(plane)]
        assert rows == [(f"{self.gang_id(pair)}.{at}", "Counter", "RUNNING") for at in (0, 1)]

    def test_one_of_them_is_explained_by_the_gang(self, plane: ActorPlane, pair: list[ActorHandle]) -> None:
        gang = self.gang_id(pair)
        for explanation in (pair[1].explain(), plane.runtime.explain(pair[1].id)):
            assert (explanation["id"], explanation["member"]) == (
                gang,
                {"id": f"{gang}.1", "index": 1, "name": "Counter"},
            )
            assert f"{gang}.1 is its member 1, Counter" in str(explanation)
        assert "member" not in plane.runtime.explain(gang)
        for wrong in (f"{gang}.2", f"{gang}.01", f"{gang}.x", "nobody.0"):
            with pytest.raises(UnknownItemError):
                plane.runtime.explain(wrong)

    def test_one_of_them_is_explained_on_the_socket_too(self, plane: ActorPlane, pair: list[ActorHandle]) -> None:
        asked = local_queries.answer(plane.runtime, {"explain": pair[0].id})
        assert plane.runtime.run(asked)["explain"]["member"]["index"] == 0

    def test_verbs_take_the_id_of_one_for_the_gang(self, plane: ActorPlane) -> None:
        scheduler = UnifiedScheduler(plane.runtime.config)
        scheduler._runtime, scheduler._submission = plane.runtime, plane.submission
        busy = plane.task("t1", cpus=8)
        first, second = scheduler.submit_gang_async([Counter, Counter])
        until(lambda: first.state is TaskState.QUEUED)
        scheduler.hold(second.id, "not yet")
        scheduler.set_priority(first.id, 7)
        plane.finish(busy)
        until(lambda: second.explain()["code"] == "HELD")
        assert (second.explain()["sentence"], first.explain()["priority"]) == ("is held: not yet", 7)
        scheduler.release(first.id)
        until(lambda: second.state is TaskState.RUNNING)
        scheduler.cancel(second.id)
        until(lambda: first.state is TaskState.CANCELLED)
        for verb in (scheduler.hold, scheduler.cancel):
            with pytest.raises(UnknownItemError):
                verb(f"{self.gang_id([first])}.2")

    def test_nothing_can_wait_for_their_success(self, plane: ActorPlane, pair: list[ActorHandle]) -> None:
        for after in (pair[0], pair[0].id, self.gang_id(pair)):
            with pytest.raises(ConfigurationError, match="is a gang of actors: that ends when it exits"):
                submitted(plane, [len], after=[after])

    def test_they_end_with_the_program(
        self, plane: ActorPlane, pair: list[ActorHandle], capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutdown_report.drain(plane.runtime)
        shutdown_report.cancel_all(plane.runtime)
        assert [one.state for one in pair] == [TaskState.CANCELLED] * 2
        assert capsys.readouterr().err == f"rmcs: ended with the program: 2 × Counter {self.gang_id(pair)} on mac\n"

    def test_killing_one_is_the_end_of_all(self, plane: ActorPlane, pair: list[ActorHandle]) -> None:
        call = pair[1].add.remote(1)
        plane.sent(1)
        pair[0].kill()
        until(lambda: pair[1].state is TaskState.CANCELLED)
        plane.fail_call(call.id, FailureClass.CRASH, message="it was killed")
        with pytest.raises(ActorDiedError):
            call.result(60)
        with pytest.raises(ActorDiedError, match="was killed"):
            pair[1].add.remote(2).result(60)

    def test_each_death_is_reported(self, plane: ActorPlane, pair: list[ActorHandle]) -> None:
        plane.die(_AsOne(self.gang_id(pair)))  # type: ignore[arg-type]  # it only asks for the id
        for one in pair:
            until(lambda one=one: one.state is TaskState.FAILED)  # type: ignore[misc]
            with pytest.raises(ActorDiedError, match="the worker died"):
                ActorHandle.ready(one, 5)


class _AsOne:
    def __init__(self, gang_id: str) -> None:
        self._item = self
        self.id = gang_id


def _rows(plane: ActorPlane) -> list[dict[str, Any]]:
    return plane.runtime.actor_rows()

"""All options of actors, all attributes of their handles, and Ray's syntax for both, on real clusters."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as ray
from ray_multicluster_scheduler import (
    ActorDiedError,
    ConfigurationError,
    TaskState,
    TaskTimeoutError,
    UnifiedScheduler,
    UnknownItemError,
    get_actor,
    kill,
    list_actors,
    submit_actor,
    submit_actor_async,
    submit_task_async,
)
from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from tests.support.mac_cluster import until

pytestmark = pytest.mark.usefixtures("scheduler")
ON_MAC: dict[str, Any] = {"preferred_cluster": "mac", "fallback": "wait"}
NOTHING = {"CPU": 0}


def greeter() -> Any:
    """A class that is pickled by value."""

    class Greeter:
        def __init__(self, word: str, mark: str = "") -> None:
            self.word, self.mark = word, mark

        def greet(self, whom: str = "you") -> str:
            print(self.word)
            return f"{self.word} {whom}{self.mark}"

        def colour(self) -> str | None:
            import os

            return os.environ.get("COLOUR")

    return Greeter


@pytest.fixture
def mine() -> Iterator[Callable[[ActorHandle], ActorHandle]]:
    """Kills the given actors after the test."""
    actors: list[ActorHandle] = []

    def keep(actor: ActorHandle) -> ActorHandle:
        actors.append(actor)
        return actor

    yield keep
    for actor in actors:
        kill(actor)


class TestWhatIsSaid:
    def test_everything_by_position(self, mine: Any) -> None:
        env = {"env_vars": {"COLOUR": "blue"}}
        actor = mine(submit_actor(greeter(), ["Hello"], {"mark": "!"}, NOTHING, ["a label"], runtime_env=env, **ON_MAC))
        assert (actor.greet.remote().result(30), actor.cluster) == ("Hello you!", "mac")
        assert actor.greet.remote(whom="all").result(30) == "Hello all!"
        assert actor.colour.remote().result(30) == "blue"
        tagged = mine(submit_actor_async(greeter(), ("Hi",), None, NOTHING, require_tags=["x86_64"]))
        assert (tagged.ready(60) is tagged, tagged.cluster) == (True, "linux")

    def test_several_calls_at_once(self, mine: Any) -> None:
        class Meeting:
            def __init__(self) -> None:
                import threading

                self.all_there = threading.Barrier(3)

            def come(self) -> int:
                return self.all_there.wait(30)

        actor = mine(submit_actor(Meeting, resource_requirements=NOTHING, max_concurrency=3))
        calls = [actor.come.remote() for _ in range(3)]
        assert sorted(call.result(60) for call in calls) == [0, 1, 2]

    def test_time_limits(self, mine: Any, tmp_path: Path) -> None:
        class Slow:
            def __init__(self, path: str) -> None:
                import os
                import time

                while not os.path.exists(path):
                    time.sleep(0.02)

        go = tmp_path / "go"
        holder = mine(submit_actor_async(Slow, (str(go),), resource_requirements={"CPU": 2}, **ON_MAC))
        with pytest.raises(TaskTimeoutError, match=f"{holder.id} is not ready after 0.1 s"):
            holder.ready(0.1)
        with pytest.raises(TaskTimeoutError, match="waited|queue_timeout"):
            submit_actor(greeter(), ("late",), resource_requirements={"CPU": 1}, queue_timeout=0.5, **ON_MAC)
        go.touch()
        assert holder.ready(60) is holder, "a caller that stopped waiting left it alone"

    def test_task_options_are_refused_with_the_actor_option(self) -> None:
        for option, instead in {
            "retries": "constructor",
            "max_retries": "max_restarts",
            "run_timeout": "ready",
        }.items():
            with pytest.raises(ConfigurationError, match=instead):
                submit_actor(greeter(), ("x",), **{option: 1})  # type: ignore[arg-type]  # wrong on purpose


class TestHandles:
    def test_properties_and_methods_of_a_handle(self, mine: Any) -> None:
        actor = mine(submit_actor(greeter(), ("Hello",), resource_requirements=NOTHING, name="told", **ON_MAC))
        assert (actor.name, actor.state, actor.cluster, actor.attempt) == ("told", TaskState.RUNNING, "mac", 1)
        assert repr(actor).startswith(f"<ActorHandle {actor.id} ")
        assert repr(actor).endswith("Greeter 'told' RUNNING on 'mac'>")
        assert get_actor("told") is actor
        assert copy.deepcopy([actor])[0] is copy.copy(actor) is actor
        call = actor.greet.remote()
        assert repr(call).startswith(f"<ActorCallHandle {call.id} ")
        assert (call.accepted(), call.result(30), call.exception(), call.done()) == (True, "Hello you", None, True)
        assert (call.state, call.cluster, call.attempt) == (TaskState.SUCCEEDED, "mac", 1)
        assert call.explain()["actor"]["id"] == actor.id
        until(lambda: call.logs() == actor.logs() == "Hello\n")
        reported: list[Any] = []
        called = threading.Event()
        other = actor.method("greet").remote("them")
        other.add_done_callback(lambda one: (reported.append(one.result()), called.set()))
        assert called.wait(30)
        assert reported == ["Hello them"]
        assert actor.explain()["calls_unanswered"] == 0
        with pytest.raises(TypeError, match="remote"):
            actor.greet()
        with pytest.raises(AttributeError, match="cannot be set"):
            actor.word = "Bye"

    def test_its_output_is_followed_to_its_end(self) -> None:
        actor = submit_actor(greeter(), ("Hello",), resource_requirements=NOTHING)
        follower = actor.follow_logs()
        actor.greet.remote().result(30)
        assert next(follower) == "Hello\n"
        actor.kill()
        assert list(follower) == []

    def test_it_lives_on_without_its_handles(self) -> None:
        actor_id = submit_actor(greeter(), ("Hello",), resource_requirements=NOTHING, name="dropped").id
        gc.collect()
        again = get_actor("dropped")
        assert (again.id, again.greet.remote().result(30)) == (actor_id, "Hello you")
        kill(again)
        with pytest.raises(ActorDiedError, match="killed"):
            again.greet.remote().result(30)
        until(lambda: {row["id"]: row["state"] for row in list_actors()}[actor_id] == "CANCELLED")
        with pytest.raises(UnknownItemError, match="'dropped'"):
            get_actor("dropped")

    async def test_asyncio(self, mine: Any) -> None:
        actor = await mine(submit_actor_async(greeter(), ("Hello",), resource_requirements=NOTHING))
        calls = [actor.greet.remote(str(number)) for number in range(3)]

        async def value(call: Any) -> Any:
            return await call

        assert await asyncio.gather(*map(value, calls)) == ["Hello 0", "Hello 1", "Hello 2"]
        elsewhere = await asyncio.to_thread(lambda: asyncio.run(value(actor.greet.remote("there"))))
        assert elsewhere == "Hello there"


class TestRaysShape:
    def test_functions_with_options(self) -> None:
        @ray.remote(num_cpus=0.5, tags=["arm64"], name="shaped")
        def shape() -> tuple[dict[str, float], str]:
            import ray as native

            context = native.get_runtime_context()
            return context.get_assigned_resources(), context.get_task_name()

        assert ray.get(shape.remote(), timeout=60) == ({"CPU": 0.5}, "shaped")
        here = shape.options(num_cpus=0, require_tags=["x86_64"], memory=10 * 1024**2, name="other").remote()
        assert ray.get(here) == ({"memory": 10 * 1024**2}, "other")
        assert here.cluster == "linux"

    def test_classes_with_options(self, mine: Any) -> None:
        @ray.remote(num_cpus=0, max_restarts=1, preferred_cluster="mac")
        class Pair:
            def __init__(self, value: int) -> None:
                self.value = value

            @ray.method(num_returns=2)
            def both(self, other: int) -> tuple[int, int]:
                return self.value, other

        actor = mine(Pair.options(name="pair", fallback="wait").remote(1))
        one, two = actor.both.remote(ray.put(2))
        assert (ray.get([one, two], timeout=60), actor.cluster) == ([1, 2], "mac")
        assert ray.get_actor("pair") is actor
        assert Pair.options(name="pair", get_if_exists=True).remote(7) is actor
        ray.kill(actor)
        until(lambda: actor.state is TaskState.CANCELLED)

    def test_cancel_takes_handles_and_actors(self, scheduler: UnifiedScheduler) -> None:
        slow = submit_task_async(lambda: __import__("time").sleep(600), resource_requirements={"CPU": 0.1})
        actor = submit_actor(greeter(), ("Hello",), resource_requirements=NOTHING)
        until(lambda: slow.state is TaskState.RUNNING)
        ray.cancel(slow, force=True)
        ray.cancel(actor)
        until(lambda: slow.state is TaskState.CANCELLED and actor.state is TaskState.CANCELLED)
        with pytest.raises(ConfigurationError, match="not the handle of an actor"):
            ray.kill(slow)

"""The handle of an actor: the user's methods first, and few names of its own."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.actors import actor_handle, actor_reference
from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.class_methods import method, methods_of
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ConfigurationError,
    TaskCancelledError,
    TaskTimeoutError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from tests.unit.client_api.actor_plane import ActorPlane, Counter, constructor_failed
from tests.unit.client_api.control_plane import until


class Greedy:
    """Takes names that the handle has, too."""

    def kill(self, whom: str) -> str:
        return f"killed {whom}"

    def state(self) -> str:
        return "mine"

    def _private(self) -> int:
        return 1

    def __len__(self) -> int:
        return 3

    def __call__(self) -> int:
        return 4


class TestNames:
    def test_its_own(self, plane: ActorPlane) -> None:
        actor = plane.actor(name="tally")
        assert (actor.id, actor.name, actor.state, actor.cluster, actor.attempt) == (
            "actor-cp1-1",
            "tally",
            TaskState.RUNNING,
            "mac",
            1,
        )
        assert repr(actor) == "<ActorHandle actor-cp1-1 Counter 'tally' RUNNING on 'mac'>"
        assert repr(actor.add) == "<ActorMethod Counter.add of actor-cp1-1>"

    def test_methods_of_the_user_win(self, plane: ActorPlane) -> None:
        actor = plane.actor(Greedy)
        actor.kill.remote("x")
        actor.state.remote()
        actor._private.remote()
        actor.__call__.remote()
        actor.method("__len__").remote()
        sent = [call.method.method for call in plane.sent(5) if call.method]
        assert sent == ["kill", "state", "_private", "__call__", "__len__"]
        assert actor.explain()["state"] == "RUNNING"
        actor.kill()
        until(lambda: actor.explain()["state"] == "CANCELLED")

    def test_a_method_is_not_called_here(self, plane: ActorPlane) -> None:
        with pytest.raises(TypeError, match=r"Counter\.add.*\.remote\("):
            plane.actor().add(1)

    def test_unknown_ones_are_refused_with_a_hint(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        with pytest.raises(AttributeError, match="Counter has no method 'ad'; did you mean add"):
            actor.ad  # noqa: B018
        with pytest.raises(AttributeError, match="it has add, pair"):
            actor.method("something_else")
        for probe in ("_repr_png_", "__array__", "_ipython_display_"):
            assert not hasattr(actor, probe)

    def test_attributes_are_read_only(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        with pytest.raises(AttributeError, match="'value' cannot be set"):
            actor.value = 5

    def test_dynamic_generators_are_refused(self, plane: ActorPlane) -> None:
        class Streaming:
            def numbers(self) -> Iterator[int]:
                yield 1

        with pytest.raises(ConfigurationError, match=r"Streaming\.numbers.*dynamic"):
            plane.actor(Streaming).numbers.options(num_returns="dynamic").remote()

    def test_options_of_a_call(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        with pytest.raises(ConfigurationError, match="no option 'num_cpus'"):
            actor.add.options(num_cpus=1)
        for wrong in (-1, True, "two"):
            with pytest.raises(ConfigurationError, match="num_returns is"):
                actor.add.options(num_returns=wrong)

    def test_methods_say_how_many_values_they_have(self) -> None:
        class Pairs:
            limit = 5

            class Inner:
                pass

            @method(num_returns=2)
            def two(self) -> tuple[int, int]:
                return 1, 2

            @staticmethod
            def still() -> None: ...

            @classmethod
            def of_class(cls) -> None: ...

        shapes = methods_of(Pairs)
        assert {name: shape.num_returns for name, shape in shapes.items()} == {"two": 2, "still": 1, "of_class": 1}
        assert "get" in methods_of(type("Mine", (dict,), {}))


class TestReady:
    def test_it_waits(self) -> None:
        with ActorPlane(slow=True) as plane:
            actor = plane.actor()
            with pytest.raises(TaskTimeoutError, match="actor-cp1-1 is not ready after 0.01 s; it is DISPATCHING"):
                actor.ready(0.01)
            plane.start(actor)
            assert actor.ready(5) is actor

    def test_it_raises_what_the_constructor_raised(self) -> None:
        with ActorPlane(slow=True) as plane:
            actor = plane.actor()
            constructor_failed(plane, actor, KeyError("k"))
            with pytest.raises(KeyError, match="k"):
                actor.ready(5)
            assert actor.state is TaskState.FAILED

    def test_one_that_is_over_is_not_ready(self, plane: ActorPlane) -> None:
        killed, left, dead = plane.actor(), plane.actor(), plane.actor()
        killed.kill()
        plane.post(events.AttemptFinished(left.id, 1, "succeeded"))
        plane.die(dead)
        until(lambda: all(actor.state.terminal for actor in (killed, left, dead)))
        with pytest.raises(TaskCancelledError, match="it was killed"):
            killed.ready()
        with pytest.raises(ActorDiedError, match=left.id):
            left.ready()
        with pytest.raises(ActorDiedError, match="the worker died"):
            dead.ready()
        killed.kill()  # nothing happens

    async def test_it_can_be_awaited(self) -> None:
        with ActorPlane(slow=True) as plane:
            actor = plane.actor()

            async def wait() -> Any:
                return await actor

            waiting = [asyncio.create_task(wait()) for _ in range(2)]
            await asyncio.sleep(0.01)
            await asyncio.to_thread(plane.start, actor)
            assert await asyncio.gather(*waiting) == [actor, actor]
            assert await actor is actor
            assert not actor._item._step_watchers or len(actor._item._step_watchers) == 1

    async def test_one_that_is_restarted_in_the_moment_it_was_ready(
        self, plane: ActorPlane, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was ready, and that is what was waited for."""
        actor, looks = plane.actor(), []
        was_ready = actor_handle._serves_or_over

        def look(item: Item) -> bool:
            looks.append(was_ready(item))
            if len(looks) == 2:  # the first is for the process, this one for the one who waits
                item.moved(Transition(item.id, 1, TaskState.RETRYING, 1, 0.0, "CODE", "died", None))
            return looks[-1]

        monkeypatch.setattr(actor_handle, "_serves_or_over", look)
        assert await actor is actor
        assert actor.state is TaskState.RETRYING

    def test_a_kill_is_for_good(self, plane: ActorPlane) -> None:
        with pytest.raises(ConfigurationError, match="no_restart=False"):
            plane.actor().kill(no_restart=False)


class TestTravel:
    def test_a_copy_is_the_handle_itself(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        for again in (copy.copy(actor), copy.deepcopy([actor])[0]):
            assert again is actor

    @pytest.mark.parametrize("writer", [pickle.dumps, pickling.dumps])
    def test_it_comes_back_into_its_program_as_itself(self, plane: ActorPlane, writer: Any) -> None:
        actor = plane.actor(Greedy)
        assert pickling.loads(writer({"a": actor}))["a"] is actor

    def test_also_when_it_left_before_it_was_placed(self) -> None:
        with ActorPlane(slow=True) as plane:
            actor = plane.actors.submit(Counter, (), None, None, None, {})
            pickle.dumps(actor)
            until(lambda: actor.cluster == "mac")
            assert actor_reference.restore(actor.id, "mac", {"add": 1}) is actor

    def test_elsewhere_it_is_unknown(self) -> None:
        with pytest.raises(UnknownItemError, match="another program") as caught:
            actor_reference.restore("actor-of-somebody", "mac", {})
        assert "get_actor" in str(caught.value)

    def test_pickled_handle_is_a_reference(self, plane: ActorPlane) -> None:
        actor = plane.actor()
        _, arguments = actor.__reduce__()
        assert arguments == (actor.id, "mac", {"add": 1, "pair": 1})


def test_a_dropped_handle_leaves_the_actor_alone(plane: ActorPlane) -> None:
    actor = plane.actor()
    actor_id, gone = actor.id, weakref.ref(actor)
    del actor
    gc.collect()
    again = plane.actors.find(actor_id)
    assert again is not None
    assert again is gone()
    assert again.state is TaskState.RUNNING
    again.kill()
    until(lambda: plane.actors.find(actor_id) is None)
    del again
    gc.collect()
    until(lambda: gc.collect() is not None and gone() is None)


def test_the_kinds_of_probes_that_python_makes(plane: ActorPlane) -> None:
    empty = ActorHandle.__new__(ActorHandle)
    assert not hasattr(empty, "anything")
    assert not hasattr(empty, "__deepcopy_nothing__")

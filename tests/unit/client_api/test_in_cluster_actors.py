"""Actors from outside as they are used inside their cluster, with a stand-in for Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.in_cluster import actors, runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.actors import ActorProxy, NativeActorHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import NativeTaskHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.scheduler import NativeScheduler
from ray_multicluster_scheduler.common.current_item import CurrentItem, set_current
from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError

ITEM = CurrentItem("task-1", 2, 7, "mac")


class Bound:
    """A method of Ray's handle: writes down what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.chosen: list[dict[str, Any]] = []

    def options(self, **options: Any) -> Bound:
        self.chosen.append(options)
        return self

    def remote(self, *args: Any) -> object:
        self.calls.append(args)
        return object()


class Ref:
    """A reference of Ray's whose value nobody has."""


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As in a worker of a cluster that has no actor of any name."""

    def get_actor(name: str, namespace: str | None = None) -> Any:
        raise ValueError(f"no actor {name}")

    def get(*_: object, **__: object) -> Any:
        raise AssertionError("the caller waited for an argument")

    monkeypatch.setattr(runtime_context, "connected_ray", lambda: SimpleNamespace(get_actor=get_actor, get=get))
    set_current(ITEM)
    yield Bound()
    set_current(None)


def proxy(bound: Bound) -> ActorProxy:
    return ActorProxy(SimpleNamespace(native_call=bound), "tally", ITEM, {}, "mac")


def test_a_handle_among_the_arguments_is_left_to_ray(bound: Bound) -> None:
    """The caller does not wait for it; and it is an argument of its own, or Ray would not fill it in."""
    first, second = Ref(), Ref()
    actor = proxy(bound)
    actor.add.remote(1, NativeTaskHandle(first, "f", ITEM), more=NativeTaskHandle(second, "g", ITEM), plain=[2])
    actor.pair.options(num_returns=2).remote()
    assert bound.calls == [("add", ("more", "plain"), 1, first, second, [2]), ("pair", ())]
    assert bound.chosen == [{"num_returns": 2}]


@pytest.mark.usefixtures("bound")
def test_an_unknown_name_says_which_ones_are_found() -> None:
    for look in (actors.find_actor, NativeScheduler().get_actor):
        with pytest.raises(UnknownItemError, match="no living actor 'tally'.* on cluster 'mac'") as caught:
            look("tally")
        assert "only detached actors, and those created inside, are found by name" in str(caught.value)


@pytest.mark.usefixtures("bound")
def test_a_namespace_is_refused_unless_it_says_nothing() -> None:
    with pytest.raises(UnknownItemError):
        NativeScheduler().get_actor("tally", namespace=None)
    with pytest.raises(ConfigurationError, match="namespace is 'mine'"):
        NativeScheduler().get_actor("tally", namespace="mine")


@pytest.mark.usefixtures("bound")
def test_children_are_ended_too() -> None:
    ended: list[bool] = []
    handle: Any = SimpleNamespace(id="t1", cancel=lambda *, force: ended.append(force))
    NativeScheduler().cancel(handle, recursive=True)
    with pytest.raises(ConfigurationError, match="recursive=False"):
        NativeScheduler().cancel(handle, recursive=False)
    for wrong in (None, [handle], 5):
        with pytest.raises(ConfigurationError, match="neither a handle nor an id"):
            NativeScheduler().cancel(wrong)
    assert ended == [False]


class Lingering:
    """An actor that still answers a few calls after it was asked to end, as Ray's may."""

    _actor_id = SimpleNamespace(hex=lambda: "a1")

    def __init__(self, answers: int) -> None:
        self.answers, self.told_to_end = answers, False
        self.__ray_ready__ = SimpleNamespace(remote=lambda: self)

    def answer(self) -> int:
        if self.told_to_end:
            self.answers -= 1
        if self.answers < 0:
            raise Lingering.Died
        return self.answers

    class Died(Exception):
        """As Ray's RayActorError."""


def test_a_kill_is_over_when_nothing_is_answered_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(actor: Lingering, no_restart: bool) -> None:
        actor.told_to_end = True

    errors = SimpleNamespace(RayActorError=Lingering.Died, GetTimeoutError=TimeoutError)
    ray = SimpleNamespace(kill=kill, get=lambda actor, timeout: actor.answer(), exceptions=errors)
    monkeypatch.setattr(runtime_context, "connected_ray", lambda: ray)
    actor = Lingering(answers=3)
    handle = NativeActorHandle(actor, "lingering", ITEM, {})

    handle.kill(no_restart=False)
    assert actor.answer() == 2  # it may restart: nothing to wait for
    handle.kill()

    with pytest.raises(Lingering.Died):
        actor.answer()

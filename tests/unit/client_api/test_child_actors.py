"""Actors that were created inside a cluster, as far as that needs no cluster: relay, reference, and end."""

from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler import QueueFullError, UnknownItemError
from ray_multicluster_scheduler.app.client_api.actors import child_relay
from ray_multicluster_scheduler.app.client_api.actors.actor_reference import (
    ChildReference,
    restore_child,
    set_reader,
)
from ray_multicluster_scheduler.app.client_api.actors.child_actors import ChildActors
from ray_multicluster_scheduler.app.client_api.actors.child_relay import ChildRelay
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime.item import Item

CHILD = ChildReference("a1", "mac", "Child", {"add": 1}, ("task-1", 1, 0, "mac"), b"of Ray")


class Inside:
    """A handle inside a cluster; its user's class has a method ``method``."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def method(self, name: str) -> Any:
        outer = self

        class Method:
            def __init__(self, number: int = 1) -> None:
                self.number = number

            def options(self, num_returns: int) -> Method:
                return Method(num_returns)

            def remote(self, *args: Any, **kwargs: Any) -> Any:
                outer.calls.append((name, args, kwargs))

                async def value() -> Any:
                    await asyncio.sleep(0)
                    return name

                made = [value() for _ in range(self.number)]
                return None if not made else made[0] if len(made) == 1 else made

        return Method()

    def ready(self) -> Inside:
        return self


@pytest.mark.parametrize(("number", "expected"), [(1, "add"), (2, ("add", "add")), (0, None)])
async def test_a_relay_passes_calls_on(number: int, expected: Any) -> None:
    child = Inside()
    assert await ChildRelay().call(child, "a1", 0, "add", number, 1, child=2) == expected
    assert child.calls == [("add", (1,), {"child": 2})]
    assert await ChildRelay().ask(child, "ready") is None, "the handle itself is not sent back"


async def test_a_relay_calls_in_the_order_of_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may start the first ones in another order."""
    child, other, relay = Inside(), Inside(), ChildRelay()
    numbers = [1, 0, 3, 2, *range(4, 20)]
    calls = [relay.call(child, "a1", number, str(number), 1) for number in numbers]
    await asyncio.gather(*calls, relay.call(other, "a2", 0, "0", 1))
    assert [name for name, _, _ in child.calls] == [str(number) for number in range(20)]
    monkeypatch.setattr(child_relay, "_MISSING_CALL_S", 0.01)
    after = [relay.call(child, "a1", number, str(number), 1) for number in (22, 21, 5)]
    await asyncio.gather(*after)
    assert [name for name, _, _ in child.calls[20:]] == ["5", "21", "22"], "20 was cancelled, 5 came late"


def test_a_reference_belongs_to_the_program_that_received_it() -> None:
    class Reader:
        _item = "source"

        class _runtime:  # noqa: N801 - an attribute of handles
            class children:  # noqa: N801
                handle = staticmethod(lambda child, source: (child, source))

    before = set_reader(Reader())
    try:
        assert restore_child(*CHILD) == (CHILD, "source")
    finally:
        set_reader(before)
    with pytest.raises(UnknownItemError, match="of another program"):
        restore_child(*CHILD)
    assert pickle.loads(pickle.dumps(CHILD)) == CHILD


def test_the_relay_is_submitted_by_the_first_call_and_again_when_it_has_ended() -> None:
    """Not while a value is unpickled: an error of the submission would be taken for one of the value."""

    class Relay:
        def __init__(self) -> None:
            self._item = SimpleNamespace(outcome=None)
            self.asked: list[Any] = []

        def method(self, name: str) -> Any:
            def remote(*args: Any) -> Any:
                self.asked.append((name, *args[1:]))
                return SimpleNamespace(result=lambda timeout: None)

            return SimpleNamespace(remote=remote, options=lambda num_returns: self.method(name))

    class Fleet:
        refuses = True

        def __init__(self) -> None:
            self.relays: list[Relay] = []

        def submit_relay(self, cls: type, cluster: str, runtime_env: Any) -> Relay:
            if self.refuses:
                raise QueueFullError("10 items wait already")
            assert (cls, cluster, runtime_env) == (ChildRelay, "mac", {"pip": ["x"]})
            self.relays.append(Relay())
            return self.relays[-1]

    fleet: Any = Fleet()
    children = ChildActors(SimpleNamespace(), lambda: fleet)  # type: ignore[arg-type]
    source = Item(TaskDescription("task-1", "task", "made it", runtime_env={"pip": ["x"]}))
    child = children.handle(CHILD, source)
    assert child is children.handle(CHILD, source)
    with pytest.raises(QueueFullError):
        child.add.remote(1)
    fleet.refuses = False
    child.add.remote(1)
    child.add.remote(2)
    assert [relay.asked for relay in fleet.relays] == [[("call", "a1", 0, "add", 1, 1), ("call", "a1", 1, "add", 1, 2)]]
    fleet.relays[0]._item.outcome = "ended"
    child.ready()
    assert child._item is fleet.relays[1]._item
    assert fleet.relays[1].asked == [("ask", "ready")]

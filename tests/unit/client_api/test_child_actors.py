"""Actors that were created inside a cluster, as far as that needs no cluster: relay, reference, and end."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from ray_multicluster_scheduler import UnknownItemError
from ray_multicluster_scheduler.app.client_api.actors.actor_reference import (
    ChildReference,
    restore_child,
    set_reader,
)
from ray_multicluster_scheduler.app.client_api.actors.child_relay import ChildRelay

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
    assert await ChildRelay().call(child, "add", number, 1, child=2) == expected
    assert child.calls == [("add", (1,), {"child": 2})]
    assert await ChildRelay().ask(child, "ready") is None, "the handle itself is not sent back"


def test_a_relay_calls_in_the_order_of_arrival() -> None:
    child = Inside()

    async def both() -> None:
        await asyncio.gather(*[ChildRelay().call(child, str(number), 1) for number in range(20)])

    asyncio.run(both())
    assert [name for name, _, _ in child.calls] == [str(number) for number in range(20)]


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

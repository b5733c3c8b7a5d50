"""RemoteValues: fetched once over any number of connections, and released for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ResultLostError
from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links import remote_values
from ray_multicluster_scheduler.scheduler.connection.links.remote_values import RemoteValues

K1, K2 = ("t1", 1), ("t2", 3)


class RecordedRemoteValues(RemoteValues):
    def __init__(self) -> None:
        self.sent: list[tuple[str, list[Any]]] = []
        super().__init__("mac", "agent-1", lambda kind, head: self.sent.append((kind, head["keys"])))

    def value(self, key: tuple[str, int], data: bytes = b"", **more: Any) -> None:
        assert self.handle(Message(m.VALUE, {"id": key[0], "attempt": key[1], **more}, [data]))

    def asked(self, *keys: tuple[str, int]) -> list[asyncio.Task[bytes]]:
        return [asyncio.ensure_future(self.fetch(key)) for key in keys]


async def test_concurrent_fetches_share_one_request() -> None:
    values = RecordedRemoteValues()
    first, second = values.asked(K1, K1)
    await asyncio.sleep(0)
    values.value(K1, b"data")
    assert [await first, await second] == [b"data", b"data"]
    assert values.sent == [(m.FETCH, [K1])]
    (again,) = values.asked(K1)
    await asyncio.sleep(0)
    assert len(values.sent) == 2
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    values.value(K1, b"late")


async def test_fetches_and_releases_are_repeated_on_a_new_connection() -> None:
    values = RecordedRemoteValues()
    values.add(K2)
    (waiting,) = values.asked(K1)
    await asyncio.sleep(0)
    values.release(K2)
    values.sent.clear()
    values.connected()
    assert values.sent == [(m.RELEASE, [K2]), (m.FETCH, [K1])]
    values.value(K1, b"data")
    assert await waiting == b"data"
    assert values.handle(Message(m.RELEASED, {"keys": [list(K2)]}))
    values.sent.clear()
    values.connected()
    assert values.sent == []


async def test_a_released_value_does_not_return_with_an_old_report() -> None:
    values = RecordedRemoteValues()
    values.add(K1)
    values.release(K1)
    assert values.handle(Message(m.KEPT, {"values": [[*K1, 5.0], [*K2, 5.0]]}))
    assert len(values) == 1, "only the other one"


async def test_old_ones_go_and_young_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    values, now = RecordedRemoteValues(), [100.0]
    monkeypatch.setattr(remote_values.time, "monotonic", lambda: now[0])
    values.add(K1)
    now[0] = 150.0
    values.add(K2)
    values.add(K1)
    assert values.handle(Message(m.KEPT, {"values": [["t3", 1, 55.0]]}))
    now[0] = 170.0
    values.release_older_than(60.0)
    assert values.sent == [(m.RELEASE, [K1]), (m.RELEASE, [("t3", 1)])], "its agent has had that one for long"
    assert len(values) == 1


async def test_a_value_that_the_cluster_has_lost_is_lost() -> None:
    values = RecordedRemoteValues()
    values.add(K1)
    (waiting,) = values.asked(K1)
    await asyncio.sleep(0)
    values.value(K1, problem="its node died", gone=True)
    with pytest.raises(ResultLostError, match=r"t1 was kept in cluster 'mac' and is lost: its node died") as lost:
        await waiting
    assert lost.value.next_step is not None
    assert len(values) == 0


async def test_an_unreadable_value_is_still_kept_and_can_be_released() -> None:
    values = RecordedRemoteValues()
    values.add(K1)
    (waiting,) = values.asked(K1)
    await asyncio.sleep(0)
    values.value(K1, problem="no memory")
    with pytest.raises(ResultLostError, match="no memory"):
        await waiting
    assert len(values) == 1
    values.release(K1)
    assert values.sent[-1] == (m.RELEASE, [K1])


async def test_all_are_lost_with_their_agent() -> None:
    values = RecordedRemoteValues()
    values.add(K2)
    (waiting,) = values.asked(K1)
    await asyncio.sleep(0)
    values.fail_all("the agent has ended")
    for one in (waiting, values.fetch(K2)):
        with pytest.raises(ResultLostError, match="the agent has ended"):
            await one
    assert len(values) == 0
    values.add(K1)
    assert len(values) == 0, "an old word of a dead agent"


async def test_other_messages_are_not_for_it() -> None:
    assert not RecordedRemoteValues().handle(Message(m.SNAPSHOT, {}))

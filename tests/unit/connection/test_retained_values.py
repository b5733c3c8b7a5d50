"""Values that stay in the cluster, as their agent sends them: one at a time, and over the connection that asked."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reporting import BACKLOG_HIGH, RetainedValues
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

K1, K2, K3 = ("t1", 1), ("t2", 1), ("t3", 1)


class Line:
    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], list[bytes]]] = []
        self.waiting: int | None = 0
        self.which: object = "first"

    def send(self, kind: str, head: dict[str, Any], blobs: Any = (), *, lazy: bool = False) -> None:
        self.sent.append((kind, head, list(blobs)))

    def backlog(self) -> int | None:
        return self.waiting

    def connection(self) -> object:
        return self.which


class FakePayloadCache:
    """References are their own values; each is read when a test says so."""

    def __init__(self) -> None:
        self.line, self.reads = Line(), list[tuple[Any, Future[bytes]]]()
        self.values = RetainedValues(self.line, {K1: (b"one", 1.0), K2: (b"two", 2.0), K3: (b"three", 3.0)}, self.read)

    def read(self, ref: Any) -> Future[bytes]:
        future: Future[bytes] = Future()
        self.reads.append((ref, future))
        return future

    async def come(self) -> None:
        ref, future = self.reads[-1]
        future.set_result(ref)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_few_values_are_read_at_a_time_and_a_hanging_read_does_not_block_others() -> None:
    payload_cache = FakePayloadCache()
    payload_cache.values.fetch([K1, K2, K3])
    await asyncio.sleep(0)
    assert [ref for ref, _ in payload_cache.reads] == [b"one", b"two"]
    await payload_cache.come()
    assert [ref for ref, _ in payload_cache.reads] == [b"one", b"two", b"three"]
    await payload_cache.come()
    assert [(kind, head["id"], blobs) for kind, head, blobs in payload_cache.line.sent] == [
        (m.VALUE, "t2", [b"two"]),
        (m.VALUE, "t3", [b"three"]),
    ]


async def test_none_is_read_while_much_waits_to_be_sent() -> None:
    payload_cache = FakePayloadCache()
    payload_cache.line.waiting = BACKLOG_HIGH
    payload_cache.values.fetch([K1])
    await asyncio.sleep(0)
    assert not payload_cache.reads
    payload_cache.line.waiting = 0
    payload_cache.values.send()
    await asyncio.sleep(0)
    assert len(payload_cache.reads) == 1


async def test_a_value_read_for_a_broken_connection_is_not_sent() -> None:
    payload_cache = FakePayloadCache()
    payload_cache.values.fetch([K1, K2, K3])
    await asyncio.sleep(0)
    payload_cache.line.which = "second"
    payload_cache.values.resume()
    ((kind, head, _),) = payload_cache.line.sent
    assert (kind, [tuple(one[:2]) for one in head["values"]]) == (m.KEPT, [K1, K2, K3])
    assert [one[2] for one in head["values"]] == sorted((one[2] for one in head["values"]), reverse=True), "their ages"
    await payload_cache.come()
    assert len(payload_cache.line.sent) == 1, "it is asked for again"
    assert len(payload_cache.reads) == 2


async def test_a_missing_or_unreadable_value_is_reported_as_such() -> None:
    payload_cache = FakePayloadCache()
    payload_cache.values.fetch([("other", 1), K1])
    for _ in range(10):
        await asyncio.sleep(0)
    payload_cache.reads[-1][1].set_exception(RuntimeError("its node died"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert [head.get("gone", False) for _, head, _ in payload_cache.line.sent] == [True, False]
    problems = [head["problem"] for _, head, _ in payload_cache.line.sent]
    assert problems == [
        "the cluster does not have it any more",
        "it cannot be read there (RuntimeError: its node died)",
    ]


async def test_a_released_value_is_deleted() -> None:
    payload_cache = FakePayloadCache()
    payload_cache.values.release([K1, K2, K3, ("other", 1)])
    assert payload_cache.line.sent == [(m.RELEASED, {"keys": [K1, K2, K3, ("other", 1)]}, [])]
    payload_cache.values.resume()
    assert len(payload_cache.line.sent) == 1

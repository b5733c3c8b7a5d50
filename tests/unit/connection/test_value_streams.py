"""The agent's end of a generator: its values are read from Ray as they are requested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from ray_multicluster_scheduler.common.several_returns import DISCARD, NO_VALUE, next_value
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, Method
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.value_streams import (
    ValueStream,
    is_request,
    stream_key,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import pack
from tests.support.eventually import eventually


class Generator:
    """Ray's: yields references, and ends with the call."""

    def __init__(self, number: int, last: BaseException | None = None) -> None:
        self.number, self.last, self.taken = number, last, 0

    def completed(self) -> str:
        return "completed"

    def __aiter__(self) -> AsyncIterator[Awaitable[Any]]:
        return self

    async def __anext__(self) -> Awaitable[Any]:
        index = self.taken
        self.taken += 1
        value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if index < self.number:
            value.set_result(pack({"status": "succeeded", "yields": index}, [b"v"]))
        elif self.last is not None:
            value.set_exception(self.last)
        else:
            value.set_result(pack({"status": "succeeded"}))
        return value


class Bench:
    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.answered: list[str] = []
        self.refused: dict[str, dict[str, Any]] = {}
        self.end: list[tuple[Any, BaseException | None]] = []
        self.completed: Any = None
        self.stream = ValueStream(self.answer, lambda record, head: self.refused.update({record.key[0]: head}))
        self.stream.open(generator, self.watch, self.ended)

    def answer(self, record: CallRecord, value: Any, error: BaseException | None) -> None:
        assert record.ref is not None
        self.answered.append(record.key[0])

    def watch(self, ref: Any, on_result: Any) -> None:
        assert ref == "completed"
        self.completed = on_result

    def ended(self, value: Any, error: BaseException | None) -> None:
        self.end.append((value, error))
        self.stream.close()

    def request(self, *indexes: int, lacking: int = 0) -> None:
        for index in indexes:
            self.stream.request(record(f"v{index}", next_value("", index, lacking)))


def record(name: str, method: str) -> CallRecord:
    return CallRecord((name, 1), method=Method(("t1", 2), method, 0))


def test_which_generator_a_request_is_about() -> None:
    assert stream_key(record("c", next_value("", 3, 0))) == ("t1", 2)
    assert stream_key(record("c", next_value("call-cp-7", 3, 0))) == ("call-cp-7", 1)
    assert stream_key(record("c", f"{DISCARD}call-cp-7")) == ("call-cp-7", 1)
    assert not is_request(record("c", "lines"))


async def test_only_what_is_requested_is_read() -> None:
    bench = Bench(Generator(5))
    await asyncio.sleep(0)
    assert bench.generator.taken == 0
    bench.request(0, 1)
    await eventually(lambda: bench.answered == ["v0", "v1"])
    assert bench.generator.taken == 2


async def test_a_later_attempt_drops_what_the_reader_has_and_keeps_what_it_lacks() -> None:
    bench = Bench(Generator(5))
    bench.request(3, lacking=2)
    await eventually(lambda: bench.answered == ["v3"])
    assert bench.generator.taken == 4
    bench.request(2, lacking=2)
    assert bench.answered == ["v3", "v2"]
    assert bench.generator.taken == 4
    assert not bench.stream._held


async def test_one_that_was_not_started_ends_without_requests() -> None:
    bench = Bench(Generator(0))
    bench.completed(None, None)
    await eventually(lambda: bench.end)
    assert bench.end[0][1] is None


async def test_a_value_that_was_read_too_early_is_kept() -> None:
    bench = Bench(Generator(2))
    bench.completed(None, None)
    await eventually(lambda: bench.generator.taken == 1)
    await asyncio.sleep(0)
    bench.request(0, 1, 2)
    await eventually(lambda: bench.end)
    assert bench.answered == ["v0", "v1"]


async def test_requests_after_its_end_have_no_value() -> None:
    bench = Bench(Generator(1))
    bench.request(0, 1, 2)
    await eventually(lambda: bench.end)
    assert bench.answered == ["v0"]
    bench.request(3)
    assert {name: head["code"] for name, head in bench.refused.items()} == dict.fromkeys(("v1", "v2", "v3"), NO_VALUE)


async def test_an_error_of_ray_ends_it() -> None:
    bench = Bench(Generator(1, RuntimeError("the worker died")))
    bench.request(0, 1)
    await eventually(lambda: bench.end)
    assert str(bench.end[0][1]) == "the worker died"
    assert bench.refused["v1"]["code"] == NO_VALUE


async def test_an_error_while_nothing_is_requested() -> None:
    bench = Bench(Generator(5))
    bench.completed(None, None)
    assert not bench.end
    bench.completed(None, RuntimeError("the worker died"))
    assert len(bench.end) == 1
    bench.completed(None, RuntimeError("again"))
    assert len(bench.end) == 1


async def test_what_nobody_reads_is_dropped_to_the_end() -> None:
    bench = Bench(Generator(100))
    bench.stream.request(record("d", f"{DISCARD}"))
    await eventually(lambda: bench.end)
    assert bench.generator.taken == 101
    assert bench.refused == {"d": {"status": "succeeded"}}


@pytest.mark.parametrize("opened", [True, False])
async def test_a_call_that_ends_otherwise(opened: bool) -> None:
    bench = Bench(Generator(5))
    if not opened:
        bench.stream = ValueStream(bench.answer, lambda record, head: bench.refused.update({record.key[0]: head}))
        bench.request(0)
    bench.stream.close()
    assert set(bench.refused) == (set() if opened else {"v0"})

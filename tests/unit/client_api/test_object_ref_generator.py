"""A generator in the program: requests ahead of the reader, answers in any order, its end, and repeated requests."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler import ObjectRefGenerator, ResultLostError, TaskSubmissionError, get, wait
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.common.several_returns import DISCARD, NEXT, NO_VALUE, STREAM, VALUES_AHEAD
from tests.support.eventually import until
from tests.unit.client_api.actor_plane import ActorPlane


class Reader:
    def lines(self) -> Iterator[int]:
        yield 1


class Stream:
    """A generator and the calls that it made."""

    def __init__(self, plane: ActorPlane) -> None:
        self.plane = plane
        self.generator: ObjectRefGenerator | None = plane.actor(Reader).lines.remote()
        self.whole = self.values.id

    @property
    def values(self) -> ObjectRefGenerator:
        assert self.generator is not None
        return self.generator

    def methods(self, number: int) -> list[tuple[str, str]]:
        """The first so many calls: their methods and ids."""
        return [(one.method.method, one.task_id) for one in self.plane.sent(number) if one.method is not None]

    def request(self, index: int, repetition: int = 0) -> str:
        """The id of the request for a value."""
        start = f"{NEXT}{index}:"

        def found() -> list[str]:
            own = [one for one in self.methods(0) if one[0].endswith(f":{self.whole}")]
            return [call_id for method, call_id in own if method.startswith(start)]

        until(lambda: len(found()) > repetition)
        return found()[repetition]

    def no_value(self, *indexes: int) -> None:
        for index in indexes:
            self.plane.fail_call(self.request(index), FailureClass.CRASH, code=NO_VALUE)


@pytest.fixture
def stream() -> Iterator[Stream]:
    with ActorPlane() as plane:
        yield Stream(plane)


def test_a_few_values_are_requested_ahead_of_the_reader(stream: Stream) -> None:
    methods = [method for method, _ in stream.methods(1 + VALUES_AHEAD)]
    assert methods == [f"{STREAM}lines", *(f"{NEXT}{index}:0:{stream.whole}" for index in range(VALUES_AHEAD))]
    assert not stream.values.next_ready()
    stream.plane.answer(stream.request(0), "a")
    assert stream.values.next_ready()
    assert len(stream.methods(1)) == 1 + VALUES_AHEAD
    assert next(stream.values).result() == "a"
    stream.request(VALUES_AHEAD)


def test_values_are_in_order_whenever_they_arrive(stream: Stream) -> None:
    for index in (2, 0, 1):
        stream.plane.answer(stream.request(index), index)
    values = [next(stream.values) for _ in range(3)]
    assert get(values) == [0, 1, 2]
    assert values[1].id == stream.request(1)
    assert "Reader[1]" in repr(values[1])


def test_its_end(stream: Stream) -> None:
    stream.plane.answer(stream.request(0), "a")
    stream.plane.answer(stream.whole)
    stream.no_value(*range(1, VALUES_AHEAD))
    assert not stream.values.is_finished()
    assert [one.result() for one in stream.values] == ["a"]
    assert stream.values.is_finished()
    assert stream.values.completed().result() is None


def test_a_failure_is_that_of_the_last_handle(stream: Stream) -> None:
    stream.plane.answer(stream.request(0), "a")
    stream.no_value(*range(1, VALUES_AHEAD))
    stream.plane.fail_call(stream.whole, FailureClass.PERMANENT, message="too bad")
    first, last = stream.values
    assert first.result() == "a"
    with pytest.raises(TaskSubmissionError, match="too bad"):
        last.result()
    assert stream.values.is_finished()


def test_a_request_that_an_attempt_did_not_answer_is_repeated(stream: Stream) -> None:
    stream.plane.answer(stream.request(0), "a")
    stream.plane.answer(stream.request(3), "d")
    stream.no_value(1, 2)
    repeated = stream.request(2, 1)
    assert f"{NEXT}2:1:{stream.whole}" in [method for method, _ in stream.methods(0)], "the first that is lacking"
    stream.plane.answer(repeated, "c")
    stream.plane.answer(stream.request(1, 1), "b")
    assert [next(stream.values).result() for _ in range(4)] == ["a", "b", "c", "d"]


def test_a_value_that_was_lost_is_an_error(stream: Stream) -> None:
    stream.plane.answer(stream.request(1), "b")
    stream.plane.answer(stream.whole, 2)
    stream.plane.fail_call(stream.request(0), FailureClass.CLUSTER, code="CLUSTER_LOST")
    stream.no_value(*range(2, VALUES_AHEAD))
    with pytest.raises(ResultLostError, match="Value 0 of"):
        next(stream.values)
    assert [one.result() for one in stream.values] == ["b"]


def test_a_value_that_cannot_be_sent_is_an_error_of_its_own(stream: Stream) -> None:
    stream.plane.fail_call(stream.request(0), FailureClass.PERMANENT, code="RESULT_TOO_LARGE", message="5 GiB")
    stream.plane.answer(stream.request(1), "b")
    first, second = next(stream.values), next(stream.values)
    with pytest.raises(TaskSubmissionError, match="5 GiB"):
        first.result()
    assert second.result() == "b"


def test_wait_and_async_for(stream: Stream) -> None:
    assert wait([stream.values], timeout=0) == ([], [stream.values])

    async def read() -> list[Any]:
        reading = asyncio.ensure_future(anext(stream.values))
        await asyncio.sleep(0)
        stream.plane.answer(stream.request(0), "a")
        first = await reading
        stream.plane.answer(stream.whole)
        stream.no_value(*range(1, VALUES_AHEAD + 1))
        return [await first, *[await one async for one in stream.values]]

    assert asyncio.run(read()) == ["a"]
    assert wait([stream.values], timeout=0) == ([stream.values], [])


def test_completed_lifts_the_bound(stream: Stream) -> None:
    stream.values.completed()
    for index in range(2 * VALUES_AHEAD):
        stream.plane.answer(stream.request(index), index)
    assert [next(stream.values).result() for _ in range(2 * VALUES_AHEAD)] == list(range(2 * VALUES_AHEAD))


def test_one_that_is_dropped(stream: Stream) -> None:
    """Without a value read it is told to go on by itself, else it is cancelled."""
    stream.generator = None
    gc.collect()
    until(lambda: f"{DISCARD}{stream.whole}" in [method for method, _ in stream.methods(0)])
    other = Stream(stream.plane)
    stream.plane.answer(other.request(0), 1)
    next(other.values)
    other.generator = None
    gc.collect()
    until(lambda: (other.whole, 1) in [(task_id, attempt) for task_id, attempt, *_ in stream.plane.link.cancelled])


def test_it_is_no_argument(stream: Stream) -> None:
    with pytest.raises(TaskSubmissionError, match="cannot be pickled"):
        stream.plane.actor().add.remote(stream.values)

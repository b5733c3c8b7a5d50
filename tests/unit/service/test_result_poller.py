"""Inbound: what a client asks for, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.app.client_api.remote.result_poller import ResultPoller
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import ResultLostError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.control_plane.runtime.outcome import value_of
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from tests.support.eventually import eventually
from tests.unit.lifecycle.driver import task


class Service:
    """Answers as a test says; when there is nothing to answer it keeps the caller waiting."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.answers: deque[Any] = deque()
        self.blobs: dict[str, bytes] = {}
        self.forgotten: set[str] = set()

    async def ask(self, method: str, path: str, output: Mapping[str, Any], **_: object) -> Any:
        assert (method, path) == ("POST", "/api/v1/wait")
        self.asked.append(output)
        while not self.answers:
            await asyncio.sleep(0.001)
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return {"mailbox": output["mailbox"] or "first", "items": [], "problems": {}, **answer}

    async def fetch(self, path: str) -> bytes:
        digest = path.rpartition("/")[2]
        if digest in self.forgotten:
            raise UnknownItemError("it was forgotten")
        if digest not in self.blobs:
            raise SchedulerError("it is not here yet")
        return self.blobs[digest]


class Client:
    def __init__(self, *ids: str) -> None:
        self.service = Service()
        self.live = {one: Item(task(one)) for one in ids}
        self.over: dict[str, Outcome] = {}
        self.unknown: dict[str, SchedulerError] = {}
        for item in self.live.values():
            item.moved(Transition(item.id, 1, TaskState.QUEUED, 0, 1.0, "QUEUED", "waits"))
        self.inbound = ResultPoller(
            cast("Any", self.service),
            "me",
            lambda: list(self.live.values()),
            self.live.get,
            cast("Any", self._end),
            cast("Any", self._lose),
            lambda _: None,
        )

    def _end(self, item: Item, outcome: Outcome) -> None:
        self.over[item.id] = outcome
        self.live.pop(item.id)
        item.ended(outcome)

    def _lose(self, item: Item, error: SchedulerError) -> None:
        self.unknown[item.id] = error
        self.live.pop(item.id)

    async def until_asked(self, times: int) -> Mapping[str, Any]:
        await eventually(lambda: len(self.service.asked) >= times)
        return self.service.asked[times - 1]


def ended(item_id: str, payload: bytes = b"v") -> dict[str, Any]:
    outcome = Outcome(Complete(item_id, TaskState.SUCCEEDED, 1, "mac"), CallResult(item_id, 1, "succeeded", payload))
    return {
        "id": item_id,
        "state": "SUCCEEDED",
        "attempt": 1,
        "cluster": "mac",
        "number": 4,
        "outcome": wire.outcome_to_wire(outcome),
    }


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client("a", "b")
    yield client
    if client.inbound._polling is not None:
        client.inbound._polling.cancel()
        await asyncio.gather(client.inbound._polling, return_exceptions=True)


async def test_closing_leaves_no_question_behind(client: Client) -> None:
    before = asyncio.all_tasks()
    client.inbound.begin()
    await client.until_asked(1)
    assert asyncio.all_tasks() > before
    await client.inbound.close()
    assert asyncio.all_tasks() == before


async def test_poller_names_all_items_again_to_a_new_mailbox(client: Client) -> None:
    client.inbound.begin()
    assert (await client.until_asked(1))["add"] == []
    client.service.answers.append({"mailbox": "another"})
    assert (await client.until_asked(2))["add"] == ["a", "b"]
    client.service.answers.append({})
    assert (await client.until_asked(3))["add"] == []


async def test_also_when_something_was_named_in_that_very_question(client: Client) -> None:
    client.inbound.add(client.live["a"])
    assert (await client.until_asked(1))["add"] == ["a"]
    client.service.answers.append({"mailbox": "another"})
    assert "b" in (await client.until_asked(2))["add"]


async def test_an_end_is_received_once_and_acknowledged(client: Client) -> None:
    client.inbound.begin()
    client.service.answers += [{"items": [ended("a")]}, {"items": [ended("a"), ended("b")]}]
    assert (await client.until_asked(2))["heard"] == ["a"]
    await client.until_asked(3)
    assert set(client.over) == {"a", "b"}
    client.service.answers.append({})
    polling = client.inbound._polling
    assert polling is not None
    await eventually(polling.done)
    assert client.service.asked[-1]["heard"] == ["a", "b"]


async def test_a_large_value_is_fetched_before_the_end_is_acknowledged(client: Client) -> None:
    large = b"x" * 100_000
    client.inbound.begin()
    client.service.answers.append({"items": [ended("a", large)]})
    await eventually(lambda: len(client.service.asked) >= 2)
    assert client.service.asked[1]["heard"] == []
    client.service.blobs[digest_of(large)] = large
    client.service.answers.append({"items": [ended("a", large)]})
    await eventually(lambda: client.over)
    assert client.over["a"].result is not None
    assert client.over["a"].result.payload == large


async def test_a_large_value_that_was_forgotten_meanwhile_is_lost_and_nobody_waits_for_it(client: Client) -> None:
    large = b"x" * 100_000
    client.service.forgotten.add(digest_of(large))
    client.inbound.begin()
    client.service.answers.append({"items": [ended("a", large)]})
    await eventually(lambda: client.over)
    with pytest.raises(ResultLostError):
        value_of(client.over["a"])


async def test_steps_only_go_forward(client: Client) -> None:
    item = client.live["a"]
    step = {"id": "a", "state": "RUNNING", "attempt": 1, "cluster": "mac", "number": 3}
    client.inbound.begin()
    client.service.answers += [{"items": [step]}, {"items": [{**step, "number": 2, "state": "QUEUED"}]}]
    await client.until_asked(3)
    assert (item.state, item.attempt, item.cluster) == (TaskState.RUNNING, 1, "mac")


async def test_what_is_unknown_there_is_reported_with_its_reason(client: Client) -> None:
    client.inbound.begin()
    client.service.answers.append({"problems": {"a": {"error": "UnknownItemError", "message": "never heard of it"}}})
    await client.until_asked(2)
    assert "never heard of it" in str(client.unknown["a"])


async def test_one_more_is_waited_for_at_once(client: Client) -> None:
    client.inbound.begin()
    await client.until_asked(1)
    client.inbound.add(client.live["b"])
    assert (await client.until_asked(2))["add"] == ["b"]


async def test_a_refusal_is_not_the_end_of_asking(client: Client) -> None:
    client.inbound.begin()
    client.service.answers += [SchedulerError("not now"), {"items": [ended("a")]}]
    await eventually(lambda: client.over)


async def test_a_malformed_answer_does_not_block_the_rest(client: Client) -> None:
    client.inbound.begin()
    strange = {**ended("a"), "outcome": {"completion": {"state": "ODD"}, "result": None, "origin": None}}
    client.service.answers.append({"items": [strange, ended("b")]})
    received = (await client.until_asked(2))["heard"]
    assert (received, set(client.over)) == (["b"], {"b"})

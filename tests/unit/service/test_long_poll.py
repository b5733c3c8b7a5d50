"""MailboxRegistry: what a client receives, when, and until when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.admin_api.events import long_poll as module
from ray_multicluster_scheduler.control_plane.admin_api.events.long_poll import Mailbox, MailboxRegistry
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, Transition
from tests.unit.lifecycle.driver import task

LONG = 60.0


class Items:
    """Stands for a runtime that knows these."""

    def __init__(self, *ids: str) -> None:
        self.known: dict[str, Item | None] = {one: Item(task(one)) for one in ids}

    def item(self, item_id: str) -> Item | None:
        return self.known.get(item_id)

    @property
    def store(self) -> Any:
        """All that was ever known is in it."""
        return SimpleNamespace(known_ids=lambda ids: {one for one in ids if one in self.known})

    async def find_item(self, item_id: str) -> Item | None:
        if item_id not in self.known:
            raise UnknownItemError(f"{item_id} is unknown.", task_id=item_id)
        return self.known[item_id]

    def __getitem__(self, item_id: str) -> Item:
        item = self.known[item_id]
        assert item is not None
        return item


def move(item: Item, number: int = 1, state: TaskState = TaskState.QUEUED) -> None:
    item.moved(Transition(item.id, number, state, 0, 5.0, "CODE", "a sentence", None))


def end(item: Item, payload: bytes | None = None) -> None:
    done = Complete(item.id, TaskState.SUCCEEDED, 1, "mac")
    item.ended(Outcome(done, CallResult(item.id, 1, "succeeded", payload)))


def boxes(items: Items) -> MailboxRegistry:
    return MailboxRegistry(cast("Any", items))


async def ask(
    boxes: MailboxRegistry, client: str = "c", *add: str, heard: tuple[str, ...] = (), timeout: float = LONG
) -> Any:
    """As a client that knows its mailbox."""
    async with asyncio.timeout(10):
        return await boxes.ask(client, boxes.box(client).name, add, heard, timeout)


def ids(answer: Any) -> list[str]:
    return [one["id"] for one in answer["items"]]


async def test_an_end_is_reported_at_once_and_again_until_it_is_acknowledged() -> None:
    items = Items("a", "b")
    post = boxes(items)
    await ask(post, "c", "a", "b", timeout=0)
    waiting = asyncio.create_task(ask(post))
    await asyncio.sleep(0)
    end(items["a"], b"value")
    answer = await waiting
    assert ids(answer) == ["a"]
    assert answer["items"][0]["outcome"]["completion"]["state"] == "SUCCEEDED"
    assert ids(await ask(post)) == ["a"]
    assert ids(await ask(post, heard=("a",), timeout=0)) == []
    end(items["a"])
    assert ids(await ask(post, timeout=0)) == []


async def test_steps_are_reported_together_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS_LATER_S", 0.02)
    items = Items("a", "b")
    post = boxes(items)
    await ask(post, "c", "a", "b", timeout=0)
    waiting = asyncio.create_task(ask(post))
    await asyncio.sleep(0)
    move(items["a"])
    move(items["b"])
    move(items["a"], 2, TaskState.RUNNING)
    answer = await waiting
    assert {one["id"]: (one["number"], one["state"]) for one in answer["items"]} == {
        "a": (2, "RUNNING"),
        "b": (1, "QUEUED"),
    }
    assert ids(await ask(post, timeout=0)) == []


async def test_what_happened_before_the_subscription_is_sent() -> None:
    items = Items("over", "moved")
    end(items["over"])
    move(items["moved"])
    answer = await ask(boxes(items), "c", "over", "moved")
    assert set(ids(answer)) == {"over", "moved"}


async def test_empty_answer_after_the_timeout() -> None:
    items = Items("a")
    post = boxes(items)
    await ask(post, "c", "a", timeout=0)
    assert (await ask(post, timeout=0.02))["items"] == []


async def test_unknown_and_forgotten_items_are_answered_at_once() -> None:
    items = Items("a")
    items.known["gone"] = None
    answer = await ask(boxes(items), "c", "a", "never", "gone")
    assert set(answer["problems"]) == {"never", "gone"}
    assert all(one["error"] == "UnknownItemError" for one in answer["problems"].values())


async def test_clients_hear_each_of_their_own_items() -> None:
    items = Items("a", "b", "both")
    post = boxes(items)
    await ask(post, "one", "a", "both", timeout=0)
    await ask(post, "two", "b", "both", timeout=0)
    for name in ("a", "b", "both"):
        end(items[name])
    assert ids(await ask(post, "one")) == ["a", "both"]
    assert ids(await ask(post, "two")) == ["b", "both"]


async def test_much_is_sent_in_parts() -> None:
    items = Items(*(f"t{number}" for number in range(module.MAX_AT_ONCE + 1)))
    post = boxes(items)
    await ask(post, "c", *items.known, timeout=0)
    for name in items.known:
        end(items[name])
    first = ids(await ask(post))
    assert len(first) == module.MAX_AT_ONCE
    assert ids(await ask(post, heard=tuple(first))) == [f"t{module.MAX_AT_ONCE}"]


async def test_many_bytes_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 20_000)
    items = Items(*(f"t{number}" for number in range(5)))
    post = boxes(items)
    for name in items.known:
        end(items[name], b"x" * 10_000)
    reported: list[str] = []
    answer = await ask(post, "c", *items.known)
    while found := ids(answer):
        assert len(found) <= 3
        reported += found
        answer = await ask(post, heard=tuple(found), timeout=0)
    assert reported == list(items.known)


async def test_a_value_that_is_too_large_is_only_named() -> None:
    items = Items("a")
    end(items["a"], b"x" * 100_000)
    (status,) = (await ask(boxes(items), "c", "a"))["items"]
    assert "payload" not in status["outcome"]["result"]
    assert status["outcome"]["result"]["digest"]


async def test_at_the_end_nobody_is_kept_waiting() -> None:
    items = Items("a")
    post = boxes(items)
    await ask(post, "c", "a", timeout=0)
    waiting = asyncio.create_task(ask(post, "c"))
    await asyncio.sleep(0)
    post.close()
    assert (await waiting)["items"] == []
    assert ids(await ask(post, "other", "a")) == ["a"]


async def test_a_mailbox_that_nobody_asks_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    items = Items("a")
    post = boxes(items)
    before = (await ask(post, "c", "a", timeout=0))["mailbox"]
    assert (await ask(post, "c", timeout=0))["mailbox"] == before
    monkeypatch.setattr(module, "KEPT_S", -1.0)
    waiting = asyncio.create_task(ask(post, "waits", "a"))
    await asyncio.sleep(0)
    await ask(post, "other", timeout=0)
    assert (await ask(post, "c", timeout=0))["mailbox"] != before
    end(items["a"])
    assert ids(await waiting) == ["a"], "one that is asked just now is kept"


async def test_unacknowledged_answers_to_calls_are_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_S", -1.0)
    heard: list[str] = []
    post = MailboxRegistry(cast("Any", None), heard.append)
    call = Promise("call")
    box = post.box("c")
    box.watch(call)
    call.ended(Outcome(Complete("call", TaskState.SUCCEEDED, 1, "mac"), None))
    assert post.box("c") is box, "its answer is nowhere else"
    monkeypatch.setattr(module, "RESULTS_KEPT_S", -1.0)
    assert post.box("c") is not box
    assert heard == ["call"]


async def test_answers_without_a_reader_expire_also_when_no_client_comes_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT_S", 0.02)
    monkeypatch.setattr(module, "RESULTS_KEPT_S", 0.05)
    heard = asyncio.Event()
    post = MailboxRegistry(cast("Any", None), lambda _: heard.set())
    call = Promise("call")
    post.box("c").watch(call)
    call.ended(Outcome(Complete("call", TaskState.SUCCEEDED, 1, "mac"), None))
    await asyncio.wait_for(heard.wait(), 30)


async def test_a_dropped_item_is_not_watched_any_more() -> None:
    items = Items("a")
    box = Mailbox()
    box.watch(items["a"])
    box.watch(items["a"])
    box.drop(["a", "never"])
    end(items["a"])
    assert await box.poll(0) == []


async def test_the_acknowledgement_of_an_answer_to_a_call_is_reported() -> None:
    heard: list[str] = []
    box = Mailbox(heard.append)
    done = Outcome(Complete("c", TaskState.SUCCEEDED, 1, "mac"), None)
    answered, given_up = Promise("answered"), Promise("given up")
    box.watch(answered)
    box.watch(given_up)
    answered.ended(done)
    assert [one["id"] for one in await box.poll(0)] == ["answered"]
    assert heard == []
    box.drop(["answered"])
    assert heard == ["answered"]
    box.drop_all()
    assert heard == ["answered"], "it runs"
    given_up.ended(done)
    assert heard == ["answered", "given up"], "nobody will ever ask for it"


@pytest.mark.parametrize("known", [None, "that of another life"])
async def test_who_knows_another_mailbox_is_answered_at_once(known: str | None) -> None:
    """After a restart a client may submit before it asks: it has to name what it waits for all the same."""
    items = Items("new", "old")
    post = boxes(items)
    box = post.box("c")
    box.watch(items["new"])
    async with asyncio.timeout(10):
        answer = await post.ask("c", known, [], [], LONG)
    assert answer["mailbox"] == box.name


async def test_who_asked_before_and_is_gone_takes_nothing_from_who_asks_now() -> None:
    """A client that hangs up is not noticed: its question would have eaten the next step."""
    items = Items("a")
    post = boxes(items)
    await ask(post, "c", "a", timeout=0)
    gone = asyncio.create_task(ask(post, "c"))
    await asyncio.sleep(0)
    now = asyncio.create_task(ask(post, "c"))
    await asyncio.sleep(0)
    move(items["a"])
    assert ids(await now) == ["a"]
    assert ids(await gone) == []

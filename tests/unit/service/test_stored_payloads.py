"""StoredShelf: payloads are in the store, few of them at hand, and what is being sent stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import ENTRY_BYTES, StoredPayloads
from tests.unit.lifecycle.driver import task

SIZE = 10_000
BLOBS = [bytes([number]) * SIZE for number in range(10)]
NAMES = [digest_of(one) for one in BLOBS]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "state")
    for data in BLOBS:
        store.put_blob(data)
    yield store
    store.close()


@pytest.fixture
def payload_cache(store: SqliteStore) -> StoredPayloads:
    return StoredPayloads(store, 3 * (SIZE + ENTRY_BYTES))


def needs(name: str, *blobs: int) -> object:
    return task(name, function_digest=NAMES[blobs[0]], arguments_digest=NAMES[blobs[-1]])


def test_no_more_is_at_hand_than_there_is_room_for_and_all_can_be_had(payload_cache: StoredPayloads) -> None:
    for name, data in zip(NAMES, BLOBS, strict=True):
        payload_cache.hold(name, data)
        assert len(payload_cache) <= 3
    assert [payload_cache.get(name) for name in NAMES] == BLOBS
    assert len(payload_cache) == 3


def test_what_was_used_last_stays(payload_cache: StoredPayloads) -> None:
    for at in (0, 1, 2):
        payload_cache.hold(NAMES[at], BLOBS[at])
    payload_cache.get(NAMES[0])
    payload_cache.hold(NAMES[3], BLOBS[3])
    assert payload_cache.is_at_hand(needs("t", 0, 2))  # type: ignore[arg-type]
    assert not payload_cache.is_at_hand(needs("t", 1))  # type: ignore[arg-type]


def test_the_same_blob_is_held_once(payload_cache: StoredPayloads) -> None:
    for _ in range(5):
        assert payload_cache.put(BLOBS[0]) == NAMES[0]
    assert len(payload_cache) == 1
    payload_cache.release(NAMES[0])
    payload_cache.release(None)
    assert payload_cache.get(NAMES[0]) == BLOBS[0]


async def test_what_is_being_sent_stays_however_little_room_there_is(store: SqliteStore) -> None:
    payload_cache = StoredPayloads(store, SIZE + ENTRY_BYTES)
    wanted = needs("t", 0, 1)
    async with payload_cache.at_hand(wanted):  # type: ignore[arg-type]
        assert payload_cache.is_at_hand(wanted)  # type: ignore[arg-type]
        for name, data in zip(NAMES, BLOBS, strict=True):
            payload_cache.hold(name, data)
        assert payload_cache.is_at_hand(wanted)  # type: ignore[arg-type]
        assert len(payload_cache) == 2
        async with payload_cache.at_hand(wanted):  # type: ignore[arg-type]
            pass
        assert payload_cache.is_at_hand(wanted), "one of two who want it is still there"  # type: ignore[arg-type]
    assert len(payload_cache) == 1


async def test_values_of_other_items_are_kept_too(payload_cache: StoredPayloads) -> None:
    item = needs("t", 0, 1)
    payload_cache.attach("t", [("result-a", BLOBS[2]), ("result-b", b"small")])
    for name, data in zip(NAMES[3:], BLOBS[3:], strict=True):
        payload_cache.hold(name, data)
    assert not payload_cache.is_at_hand(item)  # type: ignore[arg-type]
    async with payload_cache.at_hand(item):  # type: ignore[arg-type]
        assert payload_cache.is_at_hand(item)  # type: ignore[arg-type]
        assert payload_cache.objects_of("t") == [("result-a", BLOBS[2]), ("result-b", b"small")]
    payload_cache.detach("t")
    payload_cache.detach("t")
    assert payload_cache.objects_of("t") == []


async def test_what_is_not_in_the_store_any_more(payload_cache: StoredPayloads) -> None:
    gone = task("t", function_digest=NAMES[0], arguments_digest="gone")
    assert not payload_cache.is_at_hand(gone)
    with pytest.raises(StoreError, match="gone is not in the store"):
        payload_cache.get("gone")
    with pytest.raises(StoreError, match="gone is not in the store"):
        async with payload_cache.at_hand(gone):
            raise AssertionError("nothing can be sent")
    for name, data in zip(NAMES, BLOBS, strict=True):
        payload_cache.hold(name, data)
    assert len(payload_cache) == 3, "nobody wants the others of it any more"


async def test_values_that_are_lost_are_missed_when_it_is_sent(payload_cache: StoredPayloads) -> None:
    payload_cache.lose("t", ["result-a"])
    with pytest.raises(StoreError):
        async with payload_cache.at_hand(needs("t", 0)):  # type: ignore[arg-type]
            raise AssertionError("nothing can be sent")


async def test_many_at_the_same_time(store: SqliteStore) -> None:
    payload_cache = StoredPayloads(store, 0)

    async def use(at: int) -> None:
        item = needs(f"t{at}", at % 10, (at + 1) % 10)
        async with payload_cache.at_hand(item):  # type: ignore[arg-type]
            await asyncio.sleep(0)
            assert payload_cache.is_at_hand(item)  # type: ignore[arg-type]

    await asyncio.gather(*(use(at) for at in range(100)))
    assert len(payload_cache) == 0

"""Blobs stay for as long as they are needed, each once."""

from __future__ import annotations

import threading

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache


def test_equal_blobs_are_kept_once_until_the_last_user_is_done() -> None:
    payload_cache = PayloadCache()
    first, second = payload_cache.put(b"code"), payload_cache.put(b"code")
    assert first == second == digest_of(b"code")
    assert len(payload_cache) == 1
    payload_cache.release(first)
    assert payload_cache.get(second) == b"code"
    payload_cache.release(second)
    assert len(payload_cache) == 0
    with pytest.raises(KeyError):
        payload_cache.get(first)


def test_different_blobs_have_different_names() -> None:
    payload_cache = PayloadCache()
    assert payload_cache.put(b"a") != payload_cache.put(b"b")
    assert len(payload_cache) == 2


def test_nothing_is_released_for_an_item_without_a_payload() -> None:
    PayloadCache().release(None)


def test_many_threads_leave_the_cache_empty() -> None:
    payload_cache = PayloadCache()

    def use() -> None:
        for number in range(200):
            payload_cache.release(payload_cache.put(b"%d" % (number % 5)))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(payload_cache) == 0


def test_values_that_are_attached_to_an_item_stay_as_long_as_it_does() -> None:
    payload_cache = PayloadCache()
    payload_cache.attach("t1", [("a", b"A"), ("b", b"B")])
    payload_cache.attach("t2", [("b", b"B"), ("b", b"B")])
    assert payload_cache.objects_of("t1") == [("a", b"A"), ("b", b"B")]
    assert payload_cache.objects_of("t2") == [("b", b"B"), ("b", b"B")]
    assert payload_cache.objects_of("t3") == []
    assert len(payload_cache) == 2
    payload_cache.detach("t1")
    payload_cache.detach("t1")
    assert (payload_cache.objects_of("t1"), len(payload_cache)) == ([], 1)
    payload_cache.detach("t2")
    assert len(payload_cache) == 0


def test_a_blob_whose_name_is_known_is_the_same_as_one_that_was_put() -> None:
    payload_cache = PayloadCache()
    digest = payload_cache.put(b"data")
    assert payload_cache.hold(digest, b"data") == digest
    payload_cache.release(digest)
    assert payload_cache.get(digest) == b"data"
    payload_cache.release(digest)
    assert len(payload_cache) == 0

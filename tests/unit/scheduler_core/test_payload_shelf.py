"""Blobs stay for as long as somebody needs them, each once."""

from __future__ import annotations

import threading

import pytest

from ray_multicluster_scheduler.common.digest import digest_of
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadShelf


def test_equal_blobs_are_kept_once_until_the_last_user_is_done() -> None:
    shelf = PayloadShelf()
    first, second = shelf.put(b"code"), shelf.put(b"code")
    assert first == second == digest_of(b"code")
    assert len(shelf) == 1
    shelf.release(first)
    assert shelf.get(second) == b"code"
    shelf.release(second)
    assert len(shelf) == 0
    with pytest.raises(KeyError):
        shelf.get(first)


def test_different_blobs_have_different_names() -> None:
    shelf = PayloadShelf()
    assert shelf.put(b"a") != shelf.put(b"b")
    assert len(shelf) == 2


def test_nothing_is_released_for_an_item_without_a_payload() -> None:
    PayloadShelf().release(None)


def test_many_threads_leave_the_shelf_empty() -> None:
    shelf = PayloadShelf()

    def use() -> None:
        for number in range(200):
            shelf.release(shelf.put(b"%d" % (number % 5)))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shelf) == 0


def test_values_that_are_attached_to_an_item_stay_as_long_as_it_does() -> None:
    shelf = PayloadShelf()
    shelf.attach("t1", [("a", b"A"), ("b", b"B")])
    shelf.attach("t2", [("b", b"B"), ("b", b"B")])
    assert shelf.objects_of("t1") == [("a", b"A"), ("b", b"B")]
    assert shelf.objects_of("t2") == [("b", b"B"), ("b", b"B")]
    assert shelf.objects_of("t3") == []
    assert len(shelf) == 2
    shelf.detach("t1")
    shelf.detach("t1")
    assert (shelf.objects_of("t1"), len(shelf)) == ([], 1)
    shelf.detach("t2")
    assert len(shelf) == 0


def test_a_blob_whose_name_is_known_is_the_same_as_one_that_was_put() -> None:
    shelf = PayloadShelf()
    digest = shelf.put(b"data")
    assert shelf.hold(digest, b"data") == digest
    shelf.release(digest)
    assert shelf.get(digest) == b"data"
    shelf.release(digest)
    assert len(shelf) == 0

"""Blobs stay for as long as somebody needs them, each once."""

from __future__ import annotations

import threading

import pytest

from ray_multicluster_scheduler.scheduler.scheduler_core.payload_shelf import PayloadShelf, digest_of


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

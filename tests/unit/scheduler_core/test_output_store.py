"""What tasks print: in order, bounded, by attempt, and to be followed from another thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore


def test_streams_are_kept_in_order_and_can_be_told_apart() -> None:
    store = OutputStore()
    for stream, text in (("stdout", "a"), ("stderr", "b"), ("stdout", "c")):
        store.write("t1", 1, stream, text)
    store.write("t1", 2, "stdout", "second attempt")
    assert (store.text("t1", 1), store.text("t1", 1, "stdout"), store.text("t1", 1, "stderr")) == ("abc", "ac", "b")
    assert store.text("t1", 2) == "second attempt"
    assert store.text("unknown", 1) == ""


def test_too_much_output_is_counted_not_kept() -> None:
    store = OutputStore(max_chars=5)
    store.write("t1", 1, "stdout", "abcd")
    store.write("t1", 1, "stdout", "efgh")
    store.write("t1", 1, "stdout", "i")
    assert store.text("t1", 1) == "abcdi\n[4 characters more were dropped]\n"


def test_only_the_newest_attempts_are_kept() -> None:
    store = OutputStore(max_items=2)
    for number in range(4):
        store.write(f"t{number}", 1, "stdout", "x")
    assert [store.text(f"t{number}", 1) for number in range(4)] == ["", "", "x", "x"]


def test_following_from_another_thread_ends_at_close() -> None:
    store = OutputStore()
    store.write("t1", 1, "stdout", "before ")
    first = threading.Event()
    pieces: list[str] = []

    def follow() -> None:
        for piece in store.follow("t1", 1):
            pieces.append(piece)
            first.set()

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        assert first.wait(5)
        store.write("t1", 1, "stderr", "during ")
        store.write("t1", 1, "stdout", "last")
        store.close("t1", 1)
        following.result(5)
    assert "".join(pieces) == "before during last"


def all_of(store: OutputStore, task_id: str) -> str:
    """Follow to the end, which must come."""
    pieces: list[str] = []
    thread = threading.Thread(target=lambda: pieces.extend(store.follow(task_id, 1)), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it never ended"
    return "".join(pieces)


def test_following_what_is_over_gives_all_of_it() -> None:
    store = OutputStore()
    store.write("t1", 1, "stdout", "a")
    store.close("t1", 1)
    assert all_of(store, "t1") == "a"


def test_following_a_silent_attempt_that_is_over_ends_at_once() -> None:
    store = OutputStore()
    store.close("t1", 1)
    assert all_of(store, "t1") == ""


def test_following_ends_when_the_attempt_is_pushed_out_by_newer_ones() -> None:
    store = OutputStore(max_items=1)
    store.write("t1", 1, "stdout", "a")
    pieces = store.follow("t1", 1)
    assert next(pieces) == "a"
    store.write("t2", 1, "stdout", "b")
    rest: list[str] = []
    thread = threading.Thread(target=lambda: rest.extend(pieces), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it never ended"
    assert (rest, store.text("t2", 1)) == ([], "b")

"""What tasks print: in order, bounded, by attempt, and to be followed from another thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import PIECE_COST, OutputStore


def lost(characters: int) -> str:
    return f"[{characters} characters of output were dropped here]\n"


LOST = lost(1)


def test_streams_keep_their_order_and_their_names() -> None:
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


def test_all_together_have_a_bound_and_what_ended_first_goes_first() -> None:
    store = OutputStore(max_total=3 * (PIECE_COST + 1))
    for number in (1, 0, 2):
        store.write(f"t{number}", 1, "stdout", "x")
        store.close(f"t{number}", 1)
    store.write("t3", 1, "stdout", "x")
    assert [store.text(f"t{number}", 1) for number in range(4)] == ["x", LOST, "x", "x"]
    assert store.text("t1", 1, "stderr") == LOST


def test_what_is_not_over_is_never_pushed_out() -> None:
    store = OutputStore(max_total=2 * (PIECE_COST + 1))
    for number in range(4):
        store.write(f"t{number}", 1, "stdout", "x")
    dropped = "\n[1 characters more were dropped]\n"
    assert [store.text(f"t{number}", 1) for number in range(4)] == ["x", "x", dropped, dropped]
    store.close("t0", 1)
    store.write("t3", 1, "stdout", "y")
    assert [store.text(f"t{number}", 1) for number in (0, 1, 3)] == [LOST, "x", "y" + dropped]


def test_a_piece_that_comes_after_the_end_does_not_push_out_its_own_attempt() -> None:
    store = OutputStore(max_total=2 * (PIECE_COST + 1))
    for text in "abc":
        store.write("t1", 1, "stdout", text)
        store.close("t1", 1)
    assert store.text("t1", 1) == "ab\n[1 characters more were dropped]\n"
    store.write("t2", 1, "stdout", "x")
    assert (store.text("t1", 1), store.text("t2", 1)) == (lost(3), "x"), "also what was dropped before"


def test_silent_attempts_cost_nothing() -> None:
    store = OutputStore()
    for number in range(1000):
        store.close(f"t{number}", 1)
    assert (store._outputs, store._closed) == ({}, {})


def test_closing_an_attempt_closes_those_before_it() -> None:
    store = OutputStore(max_total=3 * (PIECE_COST + 1))
    for attempt in (1, 2, 3):
        store.write("t1", attempt, "stdout", "x")
    store.close("t1", 2)
    for attempt in (4, 5):
        store.write("t1", attempt, "stdout", "y")
    assert [store.text("t1", attempt) for attempt in range(1, 6)] == [LOST, LOST, "x", "y", "y"]


def test_forgetting() -> None:
    store = OutputStore()
    for attempt in (1, 2):
        store.write("t1", attempt, "stdout", "x")
    store.close("t1", 1)
    store.write("t2", 1, "stdout", "x")
    store.forget("t1")
    store.forget("unknown")
    assert (store.text("t1", 1), store.text("t1", 2), store.text("t2", 1)) == ("", "", "x")
    store.forget("t2")
    assert (store._outputs, store._closed, store._total) == ({}, {}, 0)


def test_evicted_output_is_reported_until_forgotten_and_later_output_follows_the_gap() -> None:
    store = OutputStore(max_total=2 * (PIECE_COST + 1))
    store.write("t1", 1, "stdout", "a")
    store.close("t1", 1)
    for text in "bc":
        store.write("t2", 1, "stdout", text)
    assert all_of(store, Item(store, over=True)) == LOST
    store.close("t2", 1)
    store.write("t1", 1, "stdout", "d")
    assert (store.text("t1", 1), store.text("t2", 1)) == (LOST + "d", lost(2))
    for name in ("t1", "t2"):
        store.forget(name)
        assert store.text(name, 1) == ""
    assert (store._outputs, store._closed, store._lost, store._total) == ({}, {}, {}, 0)


class Item:
    """What a follower asks about."""

    def __init__(self, store: OutputStore, *, over: bool = False) -> None:
        self._store, self._attempt, self._over = store, 1, over

    def now(self) -> tuple[int, bool]:
        return self._attempt, self._over

    def moves(self, attempt: int, *, over: bool = False) -> None:
        self._attempt, self._over = attempt, over
        self._store.wake()


def test_following_from_another_thread_ends_with_the_item() -> None:
    store = OutputStore()
    item = Item(store)
    store.write("t1", 1, "stdout", "before ")
    first = threading.Event()
    pieces: list[str] = []

    def follow() -> None:
        for piece in store.follow("t1", item.now):
            pieces.append(piece)
            first.set()

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        assert first.wait(5)
        store.write("t1", 1, "stderr", "during ")
        store.write("t1", 1, "stdout", "last ")
        store.close("t1", 1)
        item.moves(2)
        store.write("t1", 3, "stdout", "third")
        item.moves(3)
        item.moves(3, over=True)
        following.result(5)
    assert "".join(pieces) == "before during last third"


def all_of(store: OutputStore, item: Item) -> str:
    """Follow to the end, which must come."""
    pieces: list[str] = []
    thread = threading.Thread(target=lambda: pieces.extend(store.follow("t1", item.now)), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it never ended"
    return "".join(pieces)


def test_following_what_is_over_gives_all_of_it() -> None:
    store = OutputStore()
    item = Item(store)
    store.write("t1", 1, "stdout", "a")
    item.moves(1, over=True)
    assert all_of(store, item) == "a"


def test_following_a_silent_item_that_is_over_ends_at_once() -> None:
    store = OutputStore()
    item = Item(store)
    item.moves(1, over=True)
    assert all_of(store, item) == ""
    assert store._outputs == {}


def test_a_follower_reads_to_the_end_what_was_pushed_out_meanwhile() -> None:
    store = OutputStore(max_total=2 * (PIECE_COST + 1))
    item = Item(store)
    store.write("t1", 1, "stdout", "a")
    pieces = store.follow("t1", item.now)
    assert next(pieces) == "a"
    store.write("t1", 1, "stdout", "b")
    store.close("t1", 1)
    store.write("t2", 1, "stdout", "c")
    item.moves(1, over=True)
    assert store.text("t1", 1) == lost(2)
    assert list(pieces) == ["b"]


def test_what_was_dropped_on_its_way_is_counted_too() -> None:
    store = OutputStore(max_chars=5)
    store.write("t1", 1, "stdout", "abc")
    store.write("t1", 1, "stdout", "defg")
    store.count_dropped("t1", 1, 500_000)
    assert store.text("t1", 1) == "abc\n[500004 characters more were dropped]\n"

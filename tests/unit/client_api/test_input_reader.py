"""The reader of a map's input takes from it what was asked for, and no more."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from ray_multicluster_scheduler.app.client_api.executor.input_reader import InputReader
from tests.unit.client_api.control_plane import until


class Slow:
    """Numbers; before the third one it waits to be asked."""

    def __init__(self) -> None:
        self.given, self.go_on = 0, threading.Event()

    def __iter__(self) -> Iterator[int]:
        for number in range(100):
            if number == 2:
                assert self.go_on.wait(20)
            self.given = number + 1
            yield number


def test_after_a_part_was_taken_it_stops_after_the_row_on_its_way() -> None:
    source, reported = Slow(), queue.SimpleQueue[None]()
    reader = InputReader(iter(source), lambda: reported.put(None))
    reader.want(10)
    until(lambda: len(reader) == 2)
    assert reader.take(10) == [0, 1]
    source.go_on.set()
    for _ in range(3):  # of the first row, of the first one after that, and that it reads no further
        reported.get(timeout=60)
    assert (len(reader), source.given) == (1, 3)
    reader.want(3)
    until(lambda: len(reader) == 3)
    assert reader.take(2) == [2, 3]
    assert reader.take(2) == [4]
    reader.stop()


def test_it_reads_as_far_as_it_was_asked_to_and_says_so() -> None:
    source, reported = Slow(), queue.SimpleQueue[None]()
    source.go_on.set()
    reader = InputReader(iter(source), lambda: reported.put(None))
    for taken in (range(5), range(5, 10)):
        reader.want(5)
        for _ in range(2):  # the first row, and that all are there
            reported.get(timeout=60)
        assert source.given == taken.stop
        assert reader.take(5) == list(taken)
    reader.want(1000)
    until(lambda: reader.ended)
    assert len(reader.take(1000)) == 90

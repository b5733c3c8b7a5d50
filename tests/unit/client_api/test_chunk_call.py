"""A chunk as the cluster runs it: one call's error is its own, and so is one result that cannot be pickled."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.executor.chunk_call import Answer, run_rows
from ray_multicluster_scheduler.common import pickling


def values(answer: Answer) -> Any:
    return pickling.loads(answer.values)


def test_values_in_order() -> None:
    answer = run_rows(lambda x: x * x, False, [1, 2, 3])
    assert values(answer) == [1, 4, 9]
    assert answer.failures == []
    assert answer.seconds >= 0


def test_rows_of_several_iterables_are_spread() -> None:
    assert values(run_rows(lambda a, b: a - b, True, [(5, 1), (7, 2)])) == [4, 5]


def test_an_error_keeps_its_place_type_and_traceback() -> None:
    def half(x: int) -> float:
        return 1 / x

    answer = run_rows(half, False, [1, 0, 2])
    assert values(answer) == [1.0, None, 0.5]
    (failure,) = answer.failures
    assert (failure.place, failure.error_type) == (1, "ZeroDivisionError")
    assert "in half" in failure.traceback
    assert "run_rows" not in failure.traceback
    assert failure.payload is not None
    assert isinstance(pickling.loads(failure.payload), ZeroDivisionError)


def test_an_exception_that_cannot_be_pickled_is_reported_as_text() -> None:
    class Unpicklable(ValueError):
        lock = threading.Lock()

    def bad(x: int) -> None:
        raise Unpicklable("text")

    (failure,) = run_rows(bad, False, [1]).failures
    assert failure.payload is None
    assert "Unpicklable: text" in failure.message
    assert "cannot be pickled" in failure.message


def test_an_exception_without_text() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def bad(x: int) -> None:
        raise Mute

    assert ": no text>" in run_rows(bad, False, [1]).failures[0].message


def test_sys_exit_ends_one_call() -> None:
    answer = run_rows(lambda x: sys.exit(3) if x == 1 else x, False, [0, 1, 2])
    assert values(answer) == [0, None, 2]
    assert "sys.exit(3)" in answer.failures[0].message
    assert answer.failures[0].payload is None


def test_an_interrupt_ends_the_chunk() -> None:
    def stop(x: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rows(stop, False, [1, 2])


def test_only_the_result_that_cannot_be_pickled_is_lost() -> None:
    answer = run_rows(lambda x: threading.Lock() if x == 1 else x, False, [0, 1, 2])
    assert values(answer) == [0, None, 2]
    (failure,) = answer.failures
    assert failure.place == 1
    assert failure.of_result
    assert "a lock, cannot be pickled" in failure.message

"""Answers that are looked for many at a time, with a stand-in for Ray's store."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_threads import (
    MAX_POLLS,
    WINDOW,
    OnResult,
    ResultPoller,
)


class Store:
    """References are names; each has a value, an error, or nothing yet."""

    def __init__(self) -> None:
        self.values: dict[str, bytes | Exception] = {}
        self.down = False
        self.gets = 0

    def wait(self, refs: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        if self.down:
            raise ConnectionError("Ray is gone")
        done = [ref for ref in refs if ref in self.values]
        return done[:num_returns], [ref for ref in refs if ref not in done]

    def get(self, refs: Any) -> Any:
        self.gets += 1
        found = [self.values[ref] for ref in ([refs] if isinstance(refs, str) else refs)]
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found[0] if isinstance(refs, str) else found


class PollerBench:
    """A poller, and what it reported."""

    def __init__(self) -> None:
        self.store = Store()
        self.watched: list[str] = []
        self.reported: list[tuple[str, bytes | None, str]] = []
        self.sweep = ResultPoller(self.store, lambda ref, reported: self.watched.append(ref))

    def add(self, *refs: str) -> None:
        for ref in refs:
            self.sweep.add(ref, self.record_result(ref))

    def record_result(self, ref: str) -> OnResult:
        return lambda value, error: self.reported.append((ref, value, "" if error is None else str(error)))


@pytest.fixture
def bench() -> PollerBench:
    return PollerBench()


def test_ready_results_are_fetched_together_and_called_back_in_order(bench: PollerBench) -> None:
    bench.add("a", "b", "c")
    bench.store.values |= {"c": b"3", "a": b"1"}
    bench.sweep.poll()
    assert bench.reported == [("a", b"1", ""), ("c", b"3", "")]
    assert (bench.store.gets, len(bench.sweep)) == (1, 1)
    bench.store.values["b"] = b"2"
    bench.sweep.poll()
    assert bench.reported[2:] == [("b", b"2", "")]
    assert len(bench.sweep) == 0


def test_an_error_result_does_not_affect_others(bench: PollerBench) -> None:
    bench.add("a", "b", "c")
    bench.store.values |= {"a": b"1", "b": RuntimeError("its worker died"), "c": b"3"}
    bench.sweep.poll()
    assert bench.reported == [("a", b"1", ""), ("b", None, "its worker died"), ("c", b"3", "")]


def test_a_long_call_is_watched_alone_and_does_not_block_others(bench: PollerBench) -> None:
    bench.add("long", *(f"r{number}" for number in range(WINDOW)))
    bench.store.values[f"r{WINDOW - 1}"] = b"last"  # stands just behind the window
    for _ in range(MAX_POLLS):
        bench.sweep.poll()
    assert "long" in bench.watched
    bench.sweep.poll()
    assert bench.reported == [(f"r{WINDOW - 1}", b"last", "")]


def test_a_callback_may_add_another_call(bench: PollerBench) -> None:
    def reported(value: bytes | None, error: BaseException | None) -> None:
        bench.reported.append(("a", value, ""))
        bench.add("b")

    bench.sweep.add("a", reported)
    bench.store.values |= {"a": b"1", "b": b"2"}
    bench.sweep.poll()
    assert len(bench.sweep) == 1
    bench.sweep.poll()
    assert bench.reported == [("a", b"1", ""), ("b", b"2", "")]


def test_an_error_in_one_callback_does_not_affect_others(
    bench: PollerBench, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect(value: bytes | None, error: BaseException | None) -> None:
        raise RuntimeError("a defect of ours")

    bench.sweep.add("a", defect)
    bench.add("b")
    bench.store.values |= {"a": b"1", "b": b"2"}
    bench.sweep.poll()
    assert bench.reported == [("b", b"2", "")]
    assert "a defect of ours" in capsys.readouterr().err


def test_calls_are_watched_alone_when_polling_fails(bench: PollerBench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.add("a", "b")
    bench.store.down = True
    bench.sweep.poll()
    assert bench.watched == ["a", "b"]
    assert (bench.reported, len(bench.sweep)) == ([], 0)
    assert "Ray is gone" in capsys.readouterr().out
    bench.sweep.poll()  # nothing left to look for


def test_older_calls_are_polled_first(bench: PollerBench) -> None:
    bench.add("a", "b")
    bench.sweep.poll()
    bench.add("c")
    bench.store.values |= {"a": b"1", "b": b"2", "c": b"3"}
    bench.sweep.poll()
    assert [ref for ref, _, _ in bench.reported] == ["a", "b", "c"]

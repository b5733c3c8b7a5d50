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
    """A sweep, and what it told whom."""

    def __init__(self) -> None:
        self.store = Store()
        self.watched: list[str] = []
        self.told: list[tuple[str, bytes | None, str]] = []
        self.sweep = ResultPoller(self.store, lambda ref, told: self.watched.append(ref))

    def add(self, *refs: str) -> None:
        for ref in refs:
            self.sweep.add(ref, self.teller(ref))

    def teller(self, ref: str) -> OnResult:
        return lambda value, error: self.told.append((ref, value, "" if error is None else str(error)))


@pytest.fixture
def desk() -> PollerBench:
    return PollerBench()


def test_those_that_are_done_are_told_in_their_order_and_fetched_together(desk: PollerBench) -> None:
    desk.add("a", "b", "c")
    desk.store.values |= {"c": b"3", "a": b"1"}
    desk.sweep.poll()
    assert desk.told == [("a", b"1", ""), ("c", b"3", "")]
    assert (desk.store.gets, len(desk.sweep)) == (1, 1)
    desk.store.values["b"] = b"2"
    desk.sweep.poll()
    assert desk.told[2:] == [("b", b"2", "")]
    assert len(desk.sweep) == 0


def test_an_error_is_the_answer_of_one_and_not_of_the_others(desk: PollerBench) -> None:
    desk.add("a", "b", "c")
    desk.store.values |= {"a": b"1", "b": RuntimeError("its worker died"), "c": b"3"}
    desk.sweep.poll()
    assert desk.told == [("a", b"1", ""), ("b", None, "its worker died"), ("c", b"3", "")]


def test_one_that_takes_long_is_watched_alone_and_holds_up_nobody(desk: PollerBench) -> None:
    desk.add("long", *(f"r{number}" for number in range(WINDOW)))
    desk.store.values[f"r{WINDOW - 1}"] = b"last"  # stands just behind the window
    for _ in range(MAX_POLLS):
        desk.sweep.poll()
    assert "long" in desk.watched
    desk.sweep.poll()
    assert desk.told == [(f"r{WINDOW - 1}", b"last", "")]


def test_whoever_is_told_may_add_the_next(desk: PollerBench) -> None:
    def told(value: bytes | None, error: BaseException | None) -> None:
        desk.told.append(("a", value, ""))
        desk.add("b")

    desk.sweep.add("a", told)
    desk.store.values |= {"a": b"1", "b": b"2"}
    desk.sweep.poll()
    assert len(desk.sweep) == 1
    desk.sweep.poll()
    assert desk.told == [("a", b"1", ""), ("b", b"2", "")]


def test_a_defect_in_one_answer_costs_the_others_nothing(desk: PollerBench, capsys: pytest.CaptureFixture[str]) -> None:
    def defect(value: bytes | None, error: BaseException | None) -> None:
        raise RuntimeError("a defect of ours")

    desk.sweep.add("a", defect)
    desk.add("b")
    desk.store.values |= {"a": b"1", "b": b"2"}
    desk.sweep.poll()
    assert desk.told == [("b", b"2", "")]
    assert "a defect of ours" in capsys.readouterr().err


def test_nothing_is_forgotten_when_ray_cannot_be_asked(desk: PollerBench, capsys: pytest.CaptureFixture[str]) -> None:
    desk.add("a", "b")
    desk.store.down = True
    desk.sweep.poll()
    assert desk.watched == ["a", "b"]
    assert (desk.told, len(desk.sweep)) == ([], 0)
    assert "Ray is gone" in capsys.readouterr().out
    desk.sweep.poll()  # nothing left to look for


def test_those_that_wait_longer_are_looked_at_first(desk: PollerBench) -> None:
    desk.add("a", "b")
    desk.sweep.poll()
    desk.add("c")
    desk.store.values |= {"a": b"1", "b": b"2", "c": b"3"}
    desk.sweep.poll()
    assert [ref for ref, _, _ in desk.told] == ["a", "b", "c"]

"""Turns: interleaved, warmed up each time, and one failure spoils only its own figures."""

from __future__ import annotations

from typing import Any

from bench._contenders import ContenderFailed
from bench._measure import measure
from bench._parts import Part, Request

Log = list[tuple[Any, ...]]


class Scripted:
    """Notes what it is asked; fails at the n-th measured request, or when it is started."""

    def __init__(self, name: str, log: Log, fail_at: int = 0, no_start: bool = False) -> None:
        self._name, self._log, self._fail_at, self._no_start = name, log, fail_at, no_start
        self._measured = 0

    def start(self) -> None:
        if self._no_start:
            raise ContenderFailed("cannot start")

    def ask(self, do: str, /, **numbers: int) -> Any:
        self._log.append((self._name, do, *numbers.values()))
        if do != "tasks":
            return None
        self._measured += 1
        if self._measured == self._fail_at:
            raise ContenderFailed("broke")
        return numbers["count"] + self._measured


def part(*names: str, finish: Request | None = None) -> Part:
    turns = {name: Request("tasks", {"count": 10}) for name in names}
    return Part("throughput", "title", "tasks/s", turns, (Request("warm_up"),), finish)


def test_contenders_take_turns_each_warmed_up_first() -> None:
    log: Log = []
    output: list[str] = []
    both = {name: Scripted(name, log) for name in ("a", "b", "bystander")}
    figures = measure(part("a", "b", finish=Request("close")), both, 2, output.append)
    turn_a, turn_b = [("a", "warm_up"), ("a", "tasks", 10)], [("b", "warm_up"), ("b", "tasks", 10)]
    assert log == [*turn_a, *turn_b, *turn_b, *turn_a, ("a", "close"), ("b", "close")]
    assert figures.rounds == {"a": [11.0, 12.0], "b": [11.0, 12.0]}
    assert figures.errors == {}
    assert output[0] == "throughput 1/2 a: 11 tasks/s"


def test_one_that_fails_is_out_and_the_others_go_on() -> None:
    log: Log = []
    everyone = {"a": Scripted("a", log, fail_at=2), "b": Scripted("b", log), "c": Scripted("c", log, no_start=True)}
    figures = measure(part("a", "b", "c", finish=Request("close")), everyone, 3, lambda _: None)
    assert figures.rounds == {"a": [11.0], "b": [11.0, 12.0, 13.0], "c": []}
    assert figures.errors == {"a": "round 2: broke", "c": "round 1: cannot start"}
    assert log[-1] == ("b", "close")
    assert ("a", "close") not in log

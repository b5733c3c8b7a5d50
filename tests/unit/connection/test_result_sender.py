"""Telling how calls ended, with a stand-in for the connection."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from ray_multicluster_scheduler.common.frames import Pieces
from ray_multicluster_scheduler.scheduler.connection.gateway.calls import reporting as results_module
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord, Method
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reporting import (
    Progress,
    ProgressReporter,
    ResultSender,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

ACTOR = ("actor", 1)


class Line:
    """Writes down what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, head: dict[str, Any], blobs: Any = (), *, lazy: bool = False) -> None:
        self.sent.append((kind, head))

    def backlog(self) -> int | None:
        return 0

    def connection(self) -> object:
        return self

    def answered(self) -> list[str]:
        return [one["id"] for kind, head in self.sent if kind == m.FINISHED for one in head["results"]]


def nothing_to_read(record: CallRecord) -> Future[Pieces]:
    raise AssertionError(f"{record.key} is not big")


def answer(name: str, report: Progress, chunks: int) -> CallRecord:
    """The answer of a method whose actor has printed so many chunks by then."""
    record = CallRecord((name, 1), method=Method(ACTOR, "f", 0), progress=report)
    record.head, record.payload = {"status": "succeeded", "chunks": chunks}, b"x"
    return record


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def results(line: Line) -> ResultSender:
    return ResultSender(line, ProgressReporter(line.send, line.backlog), nothing_to_read)


async def test_a_result_waits_for_its_output(line: Line, results: ResultSender) -> None:
    report = Progress()
    results.add([answer("a", report, chunks=1)])
    assert line.answered() == []
    report.chunks += 1
    results.output_arrived()
    assert line.answered() == ["a"]


async def test_output_that_is_lost_is_waited_for_once(
    line: Line, results: ResultSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "_OUTPUT_TIMEOUT_S", 0.05)
    report = Progress()
    results.add([answer("a", report, chunks=1), answer("b", report, chunks=1)])
    async with asyncio.timeout(60):
        while len(line.answered()) < 2:
            await asyncio.sleep(0.01)
    assert line.answered() == ["a", "b"]
    results.add([answer("c", report, chunks=1)])
    assert line.answered() == ["a", "b", "c"]  # at once: nobody waits a second time for what is lost
    report.chunks += 1
    results.add([answer("d", report, chunks=2)])
    assert line.answered()[3:] == ["d"]


async def test_slot_moves_are_sent_before_the_results(line: Line, results: ResultSender) -> None:
    results.send_moves([(("a", 1), ("b", 1))])
    results.add([answer("a", Progress(), chunks=0)])
    assert line.sent[0] == (m.MOVED, {"slots": [["a", 1, "b", 1]]})
    assert line.answered() == ["a"]


async def test_large_results_are_read_a_few_at_a_time(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "_READ_BYTES_AT_ONCE", 100)
    being_read: dict[str, Future[Pieces]] = {}

    def read_back(record: CallRecord) -> Future[Pieces]:
        return being_read.setdefault(record.key[0], Future())

    def big(name: str) -> CallRecord:
        record = CallRecord((name, 1), ref=object(), stored_bytes=60)
        record.head = {"status": "succeeded"}
        return record

    results = ResultSender(line, ProgressReporter(line.send, line.backlog), read_back)
    results.add([big(name) for name in ("a", "b", "c", "d")])
    await asyncio.sleep(0)
    assert list(being_read) == ["a", "b"]
    for expected in (["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]):
        being_read[expected[-1]].set_result([b"x" * 60])
        async with asyncio.timeout(60):
            while line.answered() != expected or len(being_read) < min(len(expected) + 2, 4):
                await asyncio.sleep(0.001)


async def test_a_result_of_a_method_is_marked(line: Line, results: ResultSender) -> None:
    task = CallRecord(("t", 1))
    task.head, task.payload = {"status": "succeeded"}, b"x"
    results.add([answer("m", Progress(), chunks=0), task])
    entries = [one for kind, head in line.sent if kind == m.FINISHED for one in head["results"]]
    assert [one.get("method") for one in entries] == [True, None]

"""What an agent tells of calls that run, keeps while nobody listens, and forgets: its parts that need no Ray."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.frames import FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import SharedObjectCache
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reporting import (
    BACKLOG_HIGH,
    MAX_UNSENT_CHARS,
    Progress,
    ProgressReporter,
    split_output,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.cluster_probe import MachineUsage
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Lease

KEY = ("t1", 1)


class FakeGateway:
    """A reporter, the connection it has or has not, and what went out."""

    def __init__(self) -> None:
        self.backlog: int | None = 0
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.reporter = ProgressReporter(self._send, lambda: self.backlog)
        self.report = Progress()

    def _send(self, kind: str, head: dict[str, Any]) -> None:
        if self.backlog is not None:
            self.sent.append((kind, head))

    def print(self, text: str) -> None:
        self.reporter.output(KEY, self.report, [("stdout", text)])

    def text(self) -> str:
        return "".join(text for kind, head in self.sent if kind == m.OUTPUT for _, text in head["parts"])


def test_start_and_output_during_a_disconnect_are_sent_after_it_in_order() -> None:
    service = FakeGateway()
    service.print("before ")
    service.backlog = None
    service.reporter.started(KEY, service.report, 5.0, "n1")
    service.print("during ")
    service.backlog = 0
    service.print("after ")
    assert service.text() == "before ", "what was kept goes first"
    service.reporter.resend([(KEY, service.report)])
    service.print("later")
    assert (m.STARTED, {"calls": [["t1", 1, 5.0, "n1"]]}) in service.sent
    assert service.text() == "before during after later"
    assert (service.report.chunks, service.report.dropped) == (4, 0)


def test_kept_output_is_bounded_and_the_rest_is_counted() -> None:
    service = FakeGateway()
    service.backlog = None
    service.print("x" * (MAX_UNSENT_CHARS - 1))
    service.print("yy")
    service.print("z")
    assert service.report.dropped == 2
    service.backlog = 0
    service.reporter.flush(KEY, service.report)
    assert service.text() == "x" * (MAX_UNSENT_CHARS - 1) + "z"


def test_a_full_outbox_takes_no_output_until_it_drained() -> None:
    service = FakeGateway()
    service.backlog = BACKLOG_HIGH + 1
    for _ in range(1000):
        service.print("x" * 1000)
    assert service.sent == []
    assert service.report.dropped == 1_000_000 - MAX_UNSENT_CHARS
    service.reporter.drained()
    assert service.sent == []
    service.backlog = 0
    service.reporter.drained()
    assert len(service.text()) == MAX_UNSENT_CHARS


@pytest.mark.parametrize("character", ["a", "\n", "é", "\U0001f600"])
def test_output_is_cut_so_that_every_message_is_one_frame(character: str) -> None:
    parts = [("stdout", character * 100_000), ("stderr", "e"), *[("stdout", ""), ("stderr", "x")] * 20_000]
    writer = FrameWriter()
    whole: dict[str, str] = {"stdout": "", "stderr": ""}
    for some in split_output(parts):
        assert writer.put(Message(m.OUTPUT, {"id": "t" * 100, "attempt": 1, "parts": some})), "one frame"
        for stream, text in some:
            whole[stream] += text
    assert whole == {"stdout": character * 100_000, "stderr": "e" + "x" * 20_000}


def test_an_urgent_message_goes_before_all_that_waits() -> None:
    writer = FrameWriter()
    writer.put(Message(m.FINISHED, {}, [b"x" * 10_000_000]))
    writer.put(Message(m.PING, {"t": 1.0}), urgent=True)
    assert b'"ping"' in writer.take(1)


def test_functions_are_dropped_by_number_the_least_used_first() -> None:
    kept = SharedObjectCache(max_count=2, max_bytes=100)
    kept.add("a", b"1")
    kept.add("b", b"2")
    assert kept.get("a") is not None
    kept.add("c", b"3")
    assert [kept.get(digest) is not None for digest in "abc"] == [True, False, True]


def test_functions_are_dropped_by_size_but_not_the_one_that_just_came() -> None:
    kept = SharedObjectCache(max_count=10, max_bytes=100)
    kept.add("a", b"x" * 60)
    kept.add("b", b"x" * 60)
    assert (kept.get("a"), kept.get("b") is not None) == (None, True)
    kept.add("huge", b"x" * 1000)
    assert kept.get("huge") is not None
    kept.add("a", b"x" * 60)
    assert (kept.get("huge"), kept.get("b")) == (None, None)


def test_a_large_function_is_stored_once_and_a_failure_to_do_so_is_tried_again() -> None:
    kept = SharedObjectCache(10, 1000)
    function = kept.add("a", b"x" * 100_000)
    stored: list[bytes] = []

    def full(pickled: bytes) -> str:
        raise MemoryError("the object store is full")

    with pytest.raises(MemoryError):
        function.argument(full)
    for _ in range(2):
        assert function.argument(lambda pickled: stored.append(pickled) or "ref") == "ref"
    assert stored == [b"x" * 100_000]
    assert kept.add("b", b"small").argument(full) == b"small"


def test_the_lease_counts_from_the_question_that_was_answered() -> None:
    lease = Lease(10.0)
    asked = time.monotonic()
    lease.answered(asked)
    assert lease.until == asked + 10
    for nothing in (asked - 5, asked + 1000, None, "soon", 3):
        lease.answered(nothing)
    assert lease.until == asked + 10
    assert 9 < lease.left_s() <= 10


def test_the_lease_is_longer_while_the_control_plane_is_away_but_not_that_of_workers() -> None:
    lease = Lease(10.0)
    asked = time.monotonic()
    lease.answered(asked)
    lease.extend(600.0)
    assert lease.until == asked + 610
    assert lease.left_s() > 600
    assert 9 < lease.grant_s() <= 10
    again = time.monotonic()
    lease.answered(again)
    assert lease.until == again + 610, "an answer that was under way changes nothing"
    lease.reconnected(again)
    assert lease.until == again + 10
    for nothing in (-5.0, float("nan"), float("inf")):
        lease.extend(nothing)
        assert lease.until == again + 10


def test_machine_usage(tmp_path: Path) -> None:
    stat, memory = tmp_path / "stat", tmp_path / "meminfo"
    stat.write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1\n")
    memory.write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n")
    usage = MachineUsage(stat, memory)
    assert usage.read() == {"memory": 0.75}
    stat.write_text("cpu  130 0 120 740 110 0 0 0 0 0\n")
    assert usage.read() == {"memory": 0.75, "cpu": 0.5}
    stat.write_text("nothing that we know\n")
    assert usage.read() is None
    assert MachineUsage(tmp_path / "none", memory).read() is None

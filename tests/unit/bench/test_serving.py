"""bench.serving: ideals on small traces, verdicts, and a load generator that counts what the stub answered."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from bench._serving_http import RequestError, ask, closed_loop, open_loop
from bench._serving_processes import PATH, Processes, chat
from bench._serving_traces import IDEALS, Request, ideal, play, trace
from bench.serving import Row, document


def test_a_trace_has_the_load_and_the_sizes_that_it_claims() -> None:
    requests = trace(1, 50_000, [20.0, 80.0])
    sizes = [one.size for one in requests]
    assert statistics.mean(sizes) == pytest.approx(1.0, rel=0.05)
    assert statistics.stdev(sizes) == pytest.approx(1.5, rel=0.15)
    assert len(requests) / requests[-1].at == pytest.approx(0.72 * 62.5, rel=0.03)


def test_the_oracle_waits_for_the_fast_instance() -> None:
    requests = [Request(0.0, 1.0), Request(0.0, 1.0)]
    assert ideal(requests, [10.0, 100.0], IDEALS["oracle"]) == pytest.approx([10.0, 20.0])
    assert max(ideal(requests, [10.0, 100.0], IDEALS["join_shortest_queue"])) == pytest.approx(100.0)


def test_every_request_ends_once_in_virtual_time() -> None:
    ended = play(trace(1, 300, [50.0] * 4), [50.0] * 4, "shortest_queue")
    assert sorted(one.request for one in ended) == list(range(300))


def test_verdicts() -> None:
    rows = [Row("a", "low", 2.0, "<=", 1.0, 0.5), Row("a", "share", 86.0, "within", 5.0, 2.0), Row("a", "absent", None)]
    assert [one.holds(one.floor) for one in rows] == [False, True, None]
    assert rows[1].holds(2.0) is False
    assert document(rows)["floors_missed"] == ["a: low"]


def test_load_over_stubs(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        stubs = processes.stubs(0, 5)
        found = asyncio.run(closed_loop(stubs.ports[0], PATH, chat(), 4, 0.2))
        assert stubs.answered() == found["requests"] > 0
        sent, answered = asyncio.run(open_loop(stubs.ports[1], PATH, [0.0, 0.0], [chat(1.0), chat(2.0)]))
        assert max(answered) - min(sent) >= 0.015  # one after another
        with pytest.raises(RequestError, match="404"):
            asyncio.run(ask(stubs.ports[0], "/unknown", b"{}"))

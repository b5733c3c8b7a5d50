"""Large values and many handles, on two real clusters."""

from __future__ import annotations

import datetime
import decimal
import enum
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ray_multicluster_scheduler import UnifiedScheduler, get, put, remote, submit_task, wait
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import agents_of_mac, config_of_mac

MEGABYTES_200 = 200 * 1024 * 1024
pytestmark = pytest.mark.usefixtures("scheduler")


def test_200_megabytes_there_and_back(scheduler: UnifiedScheduler) -> None:
    @remote
    def turned(data: bytes) -> bytes:
        return data[:10] + data[10:][::-1]

    @remote
    def measured(data: bytes) -> tuple[int, bytes]:
        return len(data), data[-5:]

    value = bytes(range(256)) * (MEGABYTES_200 // 256)
    given = put(value)
    here = {"preferred_cluster": "linux", "fallback": "wait"}
    result = turned.options(**here).remote(given)
    # From one task to the next it passes our process as it is, and other tasks on the cluster go on meanwhile.
    after = [measured.options(**here).remote(one) for one in (given, result)]
    assert get(after, timeout=150) == [(MEGABYTES_200, value[-5:]), (MEGABYTES_200, value[10:15][::-1])]
    back = result.result(60)
    assert (len(back), back[:10], back[-5:]) == (MEGABYTES_200, value[:10], value[10:15][::-1])
    payload_cache = scheduler._started()[0].payload_cache
    deadline = time.monotonic() + 10
    while any(name in payload_cache._blobs for name in (given.digest, f"result-{result.id}")):
        assert time.monotonic() < deadline, "nobody needs them any more"
        time.sleep(0.02)


def peak_growth(process: psutil.Process, work: Callable[[], object]) -> float:
    """By how many bytes this work raises what the process needs at most. On Linux."""
    folder = Path(f"/proc/{process.pid}")
    (folder / "clear_refs").write_text("5")  # resets the peak to what it needs now
    before = process.memory_info().rss
    work()
    peak = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024 - before


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_the_memory_that_a_large_value_needs(fleet: LocalFleet, tmp_path: Path) -> None:
    size, slack = 100_000_000, 40_000_000
    with UnifiedScheduler(config_of_mac(fleet, tmp_path)) as scheduler:
        others = {process.pid for process in agents_of_mac(fleet)}
        assert scheduler.submit_task(len, (b"x" * 3_000_000,)) == 3_000_000
        (agent,) = [process for process in agents_of_mac(fleet) if process.pid not in others] or agents_of_mac(fleet)
        here = psutil.Process()
        value = b"x" * size

        def give() -> None:
            assert scheduler.submit_task(len, (value,)) == size

        def take() -> None:
            assert len(scheduler.submit_task(lambda: b"x" * size)) == size

        assert peak_growth(here, give) < 1 * size + slack, "its pickle"
        assert peak_growth(here, take) < 2 * size + slack, "its pickle and the value"
        assert peak_growth(agent, give) < 2 * size + slack, "what arrived, and Ray's object"
        assert peak_growth(agent, take) < 1 * size + slack, "Ray's object"


class Colour(enum.Enum):
    RED = 1


def test_results_of_many_kinds() -> None:
    class Local:
        def __init__(self) -> None:
            self.me: Any = self

    values: list[Any] = [
        None,
        ...,
        float("inf"),
        2**200,
        "ü€😀",
        memoryview(b"abc").tobytes(),
        bytearray(b"xyz"),
        {1, 2},
        frozenset({3}),
        {"a": [(1, {2: 3})]},
        range(5),
        slice(1, 2),
        complex(1, 2),
        decimal.Decimal("1.10"),
        datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC),
        ValueError("as a value"),
        int,
        len,
    ]
    same = remote(lambda value: value)
    for value, back in zip(values, get([same.remote(value) for value in values], timeout=90), strict=True):
        assert back == value or (type(back), back.args) == (type(value), value.args)
    assert submit_task(lambda: lambda x: x + 1)(1) == 2
    knot = submit_task(Local)
    assert knot.me is knot
    assert isinstance(knot, Local), "a class that went by value comes back as itself"


@pytest.mark.slow
def test_ten_thousand_handles_in_flight() -> None:
    same = remote(num_cpus=0.5)(lambda number: number)
    offset = put(1)
    add = remote(num_cpus=0.5)(lambda a, b: a + b)
    handles = [same.remote(number) for number in range(9_000)]
    handles += [add.remote(one, offset) for one in handles[:1_000]]
    over, rest = wait(handles, num_returns=100, timeout=120)
    assert (len(over), len(rest)) == (100, 9_900)
    assert get(handles, timeout=170) == [*range(9_000), *range(1, 1_001)]

"""Large values and many handles, on two real clusters."""

from __future__ import annotations

import datetime
import decimal
import enum
import time
from typing import Any

import pytest

from ray_multicluster_scheduler import UnifiedScheduler, get, put, remote, submit_task, wait

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

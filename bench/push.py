"""Benchmark of event delivery to many subscribers: 450 with filters, 10 that read all events, 50 that do not read.

python -m bench.push [--seconds 20] [--rate 1000] [--json]

The clusters are simulated (bench/_simulated_service.py); store, HTTP and scheduler are real. The same load runs twice
on the same service, first without readers, then with them. The readers have one core and the service another, where
there are two. A delay is the time from an event until a reader has received it. A decision's time is the median from
the arrival of a request until its item is placed, stored and dispatched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from bench.durable import BLOBS, Service, task

LIVE, WHOLE, FROZEN, OWNERS = 450, 10, 50, 100
EVENTS_OF_A_TASK = 6
TICK_S = 0.1
_AT = b'"at":'


class Reader(asyncio.Protocol):
    """Counts events and their delays. A ``frozen`` one does not read after it has connected."""

    def __init__(self, path: str, headers: Mapping[str, str], *, frozen: bool) -> None:
        self._frozen = frozen
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "127.0.0.1", **headers}.items())
        self._request = f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()
        self.delays: list[float] = []
        self.missed = 0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._frozen:
            self.transport.pause_reading()
            return
        now = time.time()
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            at = frame.find(_AT)
            if at >= 0:
                self.delays.append(now - float(frame[at + len(_AT) : frame.index(b",", at)]))
            elif b'"missed"' in frame:
                self.missed += 1


async def load(service: Service, seconds: float, rate: float, prefix: str) -> None:
    """Submit items that cause about this many events a second, for a hundred owners."""
    each = max(1, round(rate * TICK_S / EVENTS_OF_A_TASK))
    began, sent = time.monotonic(), 0
    path = f"{service.address}/api/v1/items/batch"
    async with aiohttp.ClientSession(headers=service.headers) as session:
        for tick in range(int(seconds / TICK_S)):
            names = range(sent, sent + each)
            items = [{"task": {**task(f"{prefix}{at}"), "owner": f"o{at % OWNERS}"}} for at in names]
            sent += each
            async with session.post(path, json={"items": items, "blobs": BLOBS}) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            await asyncio.sleep(max(0.0, began + (tick + 1) * TICK_S - time.monotonic()))


async def subscribe(service: Service) -> dict[str, list[Reader]]:
    host, port = service.address.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    found: dict[str, list[Reader]] = {"live": [], "whole": [], "frozen": []}
    for kind, count in (("live", LIVE), ("whole", WHOLE), ("frozen", FROZEN)):
        for at in range(count):
            path = "/api/v1/events" + (f"?owner=o{at % OWNERS}" if kind == "live" else "")
            _, reader = await loop.create_connection(
                lambda path=path, kind=kind: Reader(path, service.headers, frozen=kind == "frozen"), host, int(port)
            )
            found[kind].append(reader)
    return found


async def measure(seconds: float, rate: float) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    with tempfile.TemporaryDirectory(prefix="rmcs-push-") as name:
        folder = Path(name)
        service = Service(folder, run_ms=5.0)
        if len(cores) > 1:
            os.sched_setaffinity(service.pid, {cores[0]})
            os.sched_setaffinity(0, {cores[1]})
        try:
            await load(service, 2.0, rate, "warm")
            service.decided_ms()
            await load(service, seconds, rate, "alone")
            decided = [service.decided_ms()]
            rss = [service.rss_mb()]
            readers = await subscribe(service)
            await asyncio.sleep(1.0)
            before = {kind: sum(len(one.delays) for one in some) for kind, some in readers.items()}
            await load(service, seconds, rate, "read")
            decided.append(service.decided_ms())
            rss.append(service.rss_mb())
            await asyncio.sleep(1.0)
            for some in readers.values():
                for one in some:
                    one.transport.abort()
            await asyncio.sleep(0.1)
        finally:
            service.close()
    found: dict[str, Any] = {"bench": "push"}
    for kind in ("live", "whole"):
        delays = sorted(delay for one in readers[kind] for delay in one.delays)
        found[kind] = {
            "readers": len(readers[kind]),
            "events_per_s_each": round((len(delays) - before[kind]) / len(readers[kind]) / seconds, 2),
            "p50_s": round(statistics.median(delays), 4),
            "p99_s": round(delays[int(0.99 * len(delays))], 4),
            "missed": sum(one.missed for one in readers[kind]),
        }
    found["frozen"] = {"readers": len(readers["frozen"])}
    found["decision_p50_ms"] = decided
    found["decision_ratio"] = round(decided[1] / decided[0], 3)
    found["service_rss_mb"] = rss
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = asyncio.run(measure(given.seconds, given.rate))
    if given.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:18} {value}")


if __name__ == "__main__":
    main()

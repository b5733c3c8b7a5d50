"""Benchmark of durable submission: over HTTP one by one, in batches, and from submission to the reported end.

python -m bench.durable [--seconds 5] [--items 3000] [--json]

The clusters are simulated (bench/_simulated_service.py); store, HTTP and scheduler are real. The same run measures the
rate at which this machine's SQLite commits such rows one by one and in groups. Only acknowledged items count: they are
on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import aiohttp

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.store import Change, ItemStatus, SqliteStore, Step
from ray_multicluster_scheduler.control_plane.store.private_file import TOKEN_FILE, read_private
from ray_multicluster_scheduler.scheduler.scheduler_core import record_codec

CONNECTIONS = 16
BATCH = 100
CODE, ARGUMENTS = b"code of a function" * 20, b"arguments" * 10
BLOBS = wire.bytes_to_wire({digest_of(CODE): CODE, digest_of(ARGUMENTS): ARGUMENTS})


_TASK = {
    key: value
    for key, value in TaskDescription(
        id="",
        kind="task",
        name="f",
        requirements={"CPU": 1.0},
        function_digest=digest_of(CODE),
        arguments_digest=digest_of(ARGUMENTS),
        arguments_bytes=len(ARGUMENTS),
        submitted_at=time.time(),
    )
    .to_dict()
    .items()
    if value not in (None, (), {}, [])
}


def task(name: str) -> dict[str, Any]:
    return {**_TASK, "id": name}


class Service:
    """The service, in its own process."""

    def __init__(self, folder: Path, *, run_ms: float) -> None:
        command = [sys.executable, "-m", "bench._simulated_service", str(folder), "--run-ms", str(run_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self.pid = self._process.pid
        self.headers = {"Authorization": f"Bearer {read_private(folder / TOKEN_FILE)}"}

    def rss_mb(self) -> float:
        return round(self._ask("rss") / 1024, 1)

    def decided_ms(self) -> float:
        """The median since the last call."""
        return round(self._ask("decided"), 3)

    def _ask(self, what: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=120)


async def single(address: str, headers: Mapping[str, str], seconds: float) -> dict[str, float]:
    """Items per second over 16 connections that each submit one item at a time."""
    done = 0
    until = time.monotonic() + seconds

    async def submit(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal done
        at = 0
        while time.monotonic() < until:
            body = {"task": task(f"s{number}-{at}"), "blobs": BLOBS if at == 0 else {}}
            async with session.post(f"{address}/api/v1/items", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            at += 1
            done += 1

    began = time.monotonic()
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:
        await asyncio.gather(*(submit(session, number) for number in range(CONNECTIONS)))
    return {"per_s": round(done / (time.monotonic() - began), 1), "items": done}


async def batches(address: str, headers: Mapping[str, str], seconds: float) -> dict[str, float]:
    """Items per second over two connections that submit 100 at a time."""
    done = 0
    until = time.monotonic() + seconds

    async def submit(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal done
        at = 0
        while time.monotonic() < until:
            items = [{"task": task(f"b{number}-{at}-{one}")} for one in range(BATCH)]
            body = {"items": items, "blobs": BLOBS if at == 0 else {}}
            async with session.post(f"{address}/api/v1/items/batch", json=body) as answer:
                accepted = (await answer.json())["items"]
                assert all("id" in one for one in accepted), accepted[0]
            at += 1
            done += BATCH

    began = time.monotonic()
    async with aiohttp.ClientSession(headers=headers) as session:
        await asyncio.gather(submit(session, 0), submit(session, 1))
    return {"per_s": round(done / (time.monotonic() - began), 1), "items": done}


async def end_to_end(address: str, headers: Mapping[str, str], items: int) -> dict[str, float]:
    """Items per second from submission until the client has received their end."""
    began = time.monotonic()
    left: set[str] = set()
    async with aiohttp.ClientSession(headers=headers) as session:

        async def submit() -> None:
            for at in range(0, items, BATCH):
                names = [f"e{at + one}" for one in range(BATCH)]
                body = {"client": "bench", "items": [{"task": task(name)} for name in names], "blobs": BLOBS}
                left.update(names)
                async with session.post(f"{address}/api/v1/items/batch", json=body) as answer:
                    assert answer.status == 200
                    await answer.read()

        async def receive(sending: asyncio.Task[None]) -> None:
            received: list[str] = []
            mailbox: str | None = None
            while left or not sending.done():
                body = {"client": "bench", "mailbox": mailbox, "heard": received, "timeout": 1}
                async with session.post(f"{address}/api/v1/wait", json=body) as answer:
                    waited = await answer.json()
                mailbox = waited["mailbox"]
                ended = [one for one in waited["items"] if "outcome" in one]
                assert all(one["state"] == "SUCCEEDED" for one in ended)
                received = [one["id"] for one in ended]
                left.difference_update(received)

        sending = asyncio.create_task(submit())
        await asyncio.gather(sending, receive(sending))
    return {"per_s": round(items / (time.monotonic() - began), 1), "items": items}


def raw(folder: Path, seconds: float, group: int) -> float:
    """Commits of submission rows per second, ``group`` rows per commit."""
    store = SqliteStore(folder)
    number = 0
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        change = Change()
        for _ in range(group):
            number += 1
            one = TaskDescription.from_dict(task(f"r{number}"))
            change.new.append(record_codec.new_item(one, number, record_codec.encode_description(one)))
            change.statuses[one.id] = ItemStatus(one.id, TaskState.QUEUED)
            change.entries += [
                Step(one.id, step, state, 0, 1.0, "QUEUED", "waits to be placed")
                for step, state in ((1, TaskState.PENDING), (2, TaskState.QUEUED))
            ]
        wait([store.write(change)])
    rate = number / (time.monotonic() - began)
    store.close()
    return round(rate, 1)


def measure(seconds: float, items: int) -> dict[str, Any]:
    found: dict[str, Any] = {"bench": "durable"}
    with tempfile.TemporaryDirectory(prefix="rmcs-durable-") as name:
        folder = Path(name)
        found["raw_one_by_one_per_s"] = raw(folder / "raw1", min(seconds, 3.0), 1)
        found["raw_in_groups_per_s"] = raw(folder / "raw100", min(seconds, 3.0), BATCH)
        for what, run_ms in (("single", 3_600_000.0), ("batches", 3_600_000.0), ("end_to_end", 5.0)):
            service = Service(folder / what, run_ms=run_ms)
            try:
                match what:
                    case "single":
                        found[what] = asyncio.run(single(service.address, service.headers, seconds))
                    case "batches":
                        found[what] = asyncio.run(batches(service.address, service.headers, seconds))
                    case _:
                        found[what] = asyncio.run(end_to_end(service.address, service.headers, items))
                found[what]["rss_mb"] = service.rss_mb()
            finally:
                service.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--items", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.seconds, given.items)
    if given.json:
        print(json.dumps(found))
        return
    print(f"SQLite here, such rows: {found['raw_one_by_one_per_s']:,} /s one by one, ", end="")
    print(f"{found['raw_in_groups_per_s']:,} /s in groups of {BATCH}")
    for what, floor in (("single", 800), ("batches", 5000), ("end_to_end", 500)):
        one = found[what]
        print(f"{what}: {one['per_s']:,} /s (floor {floor:,}), {one['items']:,} items, {one['rss_mb']} MB")


if __name__ == "__main__":
    main()

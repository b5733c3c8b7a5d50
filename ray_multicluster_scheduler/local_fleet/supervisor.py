"""The supervisor process of one local cluster: it owns the Ray head and the forwarders in front of it.

Started by :class:`LocalFleet` in a session of its own. The first line on standard input describes the cluster,
each further line is a request; answers and progress go to standard output, one JSON object per line. When standard
input ends, or the parent ends in any other way, it kills every process of the cluster and removes its files.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, SchedulerError
from ray_multicluster_scheduler.local_fleet import processes
from ray_multicluster_scheduler.local_fleet.forwarder import Forwarder, Impairment
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir, ClusterRecord, remove_config, remove_tree
from ray_multicluster_scheduler.local_fleet.local_cluster import LocalCluster
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.ray_head import RayHead

_WATCH_S = 0.5
_RECORD_S = 2.0
Answer = dict[str, Any]


class Supervisor:
    """Carries out requests for one cluster; one request at a time."""

    def __init__(self, spec: dict[str, Any]) -> None:
        cluster = LocalCluster(**spec["cluster"])
        self._name = cluster.name
        self._parent: int = spec["parent"]
        self._folder = ClusterDir(Path(spec["folder"]))
        self._config_path = Path(spec["config_path"])
        self._fleet_id: str = spec["fleet_id"]
        self._head = RayHead(cluster, Path(spec["python"]), self._folder, spec["marker"])
        self._state = "down"
        self._impairment = Impairment()
        self._client = Forwarder(self._impairment)
        self._dashboard = Forwarder(self._impairment)
        self._exposed: list[Forwarder] = []
        self._lock = asyncio.Lock()
        self._ended = asyncio.Event()

    async def run(self, requests: asyncio.StreamReader) -> None:
        """Serve until the parent has ended, then stop the cluster and remove its files."""
        self._record(None)
        tasks = [asyncio.create_task(work) for work in (self._serve(requests), self._watch(), self._record_members())]
        for task in tasks:
            task.add_done_callback(lambda _: self.end())  # each of them is needed to supervise the cluster
        send({"event": "published", "client": self._client.port, "dashboard": self._dashboard.port})
        await self._ended.wait()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await self._clean_up()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def end(self) -> None:
        """Stop serving; :meth:`run` cleans up and returns."""
        self._ended.set()

    async def _serve(self, requests: asyncio.StreamReader) -> None:
        try:
            async with asyncio.TaskGroup() as running:
                while (line := await requests.readline()) and (request := json.loads(line))["op"] != "end":
                    running.create_task(self._answer(request))
                self.end()  # at once: a start may still be running in the group
        finally:
            self.end()

    async def _watch(self) -> None:
        """Notice a parent that has ended although a copy of the pipe is open, and a head that ended by itself."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if os.getppid() != self._parent:
                self.end()
            self._head.reap_orphans()
            if self._state == "up" and self._head.exit_status() is not None:
                await self._handle_head_exit()

    async def _record_members(self) -> None:
        """Keep the record up to date: if this process is killed, a sweep finds every process in it."""
        recorded: list[Identity] = []
        while True:
            await asyncio.sleep(_RECORD_S)
            members = await asyncio.to_thread(lambda: processes.identities(processes.descendants(os.getpid())))
            if members != recorded:
                self._record(self._head.pid, members)
                recorded = members

    async def _handle_head_exit(self) -> None:
        """Ray ended by itself: kill the processes it left, and refuse connections."""
        async with self._lock:
            if self._state != "up" or self._head.exit_status() is None:
                return
            self._state = "down"
            text = "Ray ended by itself; the cluster is down"
            try:
                await self.op_kill()
            except SchedulerError as error:
                text = f"{text}; {error}"
            send({"event": "progress", "text": text})

    async def _answer(self, request: dict[str, Any]) -> None:
        number, op, args = request["id"], request["op"], request.get("args", {})
        operation: Callable[..., Awaitable[Answer | None]] = getattr(self, f"op_{op}")
        try:
            async with self._lock:
                answer = await operation(**args)
        except SchedulerError as error:
            send({"id": number, "error": error.message, "next_step": error.next_step})
        except Exception as error:  # noqa: BLE001 - the parent needs an answer in any case
            send({"id": number, "error": f"{type(error).__name__}: {error}", "next_step": None})
        else:
            send({"id": number, "ok": answer or {}})

    async def op_start(self) -> None:
        if self._head.paused:
            raise ClusterConnectionError(
                f"Local cluster {self._name!r} is paused.", cluster=self._name, next_step="resume or kill it first."
            )
        if self._state == "up" and self._head.exit_status() is None:  # otherwise it died and was not noticed yet
            return
        await self.op_kill()
        self._state = "starting"
        try:
            await self._head.start(lambda text: send({"event": "progress", "text": text}), self._record)
            ports = self._head.ports
            assert ports is not None
            await self._client.open(ports.client)
            await self._dashboard.open(ports.dashboard)
        except BaseException:
            self._state = "down"
            raise
        self._state = "up"

    async def op_kill(self) -> None:
        await self._client.shut()
        await self._dashboard.shut()
        await self._head.kill()
        self._state = "down"

    async def op_pause(self) -> None:
        self._require_up()
        await self._head.pause()

    async def op_resume(self) -> None:
        self._require_up()
        await self._head.resume()

    async def op_cut(self) -> None:
        for forwarder in self._forwarders():
            await forwarder.cut()

    async def op_restore_network(self) -> None:
        self._impairment.thaw()
        self._impairment.delay_s = 0.0
        self._impairment.bytes_per_s = None
        for forwarder in self._forwarders():
            await forwarder.uncut()

    async def op_cut_some(self, probability: float) -> Answer:
        return {"count": sum([await forwarder.cut_some(probability) for forwarder in self._forwarders()])}

    async def op_blackhole(self) -> Answer:
        return {"count": sum(forwarder.blackhole() for forwarder in self._forwarders())}

    async def op_freeze(self) -> None:
        self._impairment.freeze()

    async def op_delay(self, seconds: float) -> None:
        self._impairment.delay_s = seconds

    async def op_throttle(self, bytes_per_s: float | None) -> None:
        self._impairment.bytes_per_s = bytes_per_s

    async def op_expose(self, port: int) -> Answer:
        forwarder = Forwarder(self._impairment)
        await forwarder.open(port)
        self._exposed.append(forwarder)
        return {"port": forwarder.port}

    async def op_status(self) -> Answer:
        found = await asyncio.to_thread(self._head.find)
        ports = self._head.ports
        return {
            "state": "paused" if self._head.paused else self._state,
            "pids": sorted(process.pid for process in found),
            "session": self._head.pid,
            "ports": ports._asdict() if ports else {},
        }

    def _forwarders(self) -> list[Forwarder]:
        return [self._client, self._dashboard, *self._exposed]

    def _require_up(self) -> None:
        if self._state != "up":
            raise ClusterConnectionError(
                f"Local cluster {self._name!r} is {self._state}.", cluster=self._name, next_step="start it first."
            )

    def _record(self, head: int | None, members: Sequence[Identity] = ()) -> None:
        own = Identity.of(os.getpid())
        assert own is not None
        ClusterRecord(own, Identity.of(head) if head else None, members).write(self._folder.record)

    async def _clean_up(self) -> None:
        try:
            for forwarder in self._forwarders():
                await forwarder.close()
            await self._head.kill()
            self._head.reap_orphans()
        finally:
            remove_config(self._config_path, self._fleet_id)
            remove_tree(self._folder.root)
            fleet = self._folder.root.parent
            if fleet.is_dir() and not any(entry.is_dir() for entry in fleet.iterdir()):
                remove_tree(fleet)  # this was the last cluster


def send(message: dict[str, Any]) -> None:
    """Send one line to the parent; if it has ended, the end of our input shows that."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), (json.dumps(message) + "\n").encode())


async def main() -> None:
    """Entry point of the process."""
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    line = await requests.readline()
    if not line:
        return
    supervisor = Supervisor(json.loads(line))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.end)
    processes.adopt_orphans()
    await supervisor.run(requests)


if __name__ == "__main__":
    asyncio.run(main())

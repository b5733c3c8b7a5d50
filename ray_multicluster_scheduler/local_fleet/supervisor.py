"""The process that owns one local cluster: its head and its forwarders.

Started by :class:`LocalFleet` in a session of its own. The first line on standard input describes the cluster,
each further line is a request; answers and progress go to standard output, one JSON object per line. When standard
input ends, or the parent is gone in any other way, it ends every process of the cluster and removes its files.
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
from ray_multicluster_scheduler.local_fleet.config_file import remove_config
from ray_multicluster_scheduler.local_fleet.description import LocalCluster
from ray_multicluster_scheduler.local_fleet.forwarder import Forwarder
from ray_multicluster_scheduler.local_fleet.head import RayHead
from ray_multicluster_scheduler.local_fleet.impairment import Impairment
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir, ClusterRecord, remove_tree
from ray_multicluster_scheduler.local_fleet.processes import Identity

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
        self._one_at_a_time = asyncio.Lock()
        self._over = asyncio.Event()

    async def run(self, requests: asyncio.StreamReader) -> None:
        """Serve until the parent is gone, then leave nothing behind."""
        self._record(None)
        tasks = [asyncio.create_task(work) for work in (self._serve(requests), self._watch(), self._note_members())]
        for task in tasks:
            task.add_done_callback(lambda _: self.end())  # without any one of them the cluster is not looked after
        tell({"event": "published", "client": self._client.port, "dashboard": self._dashboard.port})
        await self._over.wait()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await self._tidy()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def end(self) -> None:
        """Stop serving; :meth:`run` tidies up and returns."""
        self._over.set()

    async def _serve(self, requests: asyncio.StreamReader) -> None:
        try:
            async with asyncio.TaskGroup() as running:
                while (line := await requests.readline()) and (request := json.loads(line))["op"] != "end":
                    running.create_task(self._answer(request))
                self.end()  # now, not when the group is done: a start may still be under way
        finally:
            self.end()

    async def _watch(self) -> None:
        """Notice a parent that is gone though a copy of the pipe lives on, and a head that ended by itself."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if os.getppid() != self._parent:
                self.end()
            self._head.reap_orphans()
            if self._state == "up" and self._head.exit_status() is not None:
                await self._bury()

    async def _note_members(self) -> None:
        """Keep the record up to date: should we be killed, whoever tidies up finds every process in it."""
        noted: list[Identity] = []
        while True:
            await asyncio.sleep(_RECORD_S)
            members = await asyncio.to_thread(lambda: processes.identities(processes.descendants(os.getpid())))
            if members != noted:
                self._record(self._head.pid, members)
                noted = members

    async def _bury(self) -> None:
        """Ray ended by itself: end what it left, and refuse connections."""
        async with self._one_at_a_time:
            if self._state != "up" or self._head.exit_status() is None:
                return
            self._state = "down"
            text = "Ray ended by itself; the cluster is down"
            try:
                await self._kill()
            except SchedulerError as error:
                text = f"{text}; {error}"
            tell({"event": "progress", "text": text})

    async def _answer(self, request: dict[str, Any]) -> None:
        number, op, args = request["id"], request["op"], request.get("args", {})
        operation: Callable[..., Awaitable[Answer | None]] = getattr(self, f"op_{op}")
        try:
            async with self._one_at_a_time:
                answer = await operation(**args)
        except SchedulerError as error:
            tell({"id": number, "error": error.message, "next_step": error.next_step})
        except Exception as error:  # noqa: BLE001 - the parent waits for an answer, whatever went wrong
            tell({"id": number, "error": f"{type(error).__name__}: {error}", "next_step": None})
        else:
            tell({"id": number, "ok": answer or {}})

    async def op_start(self) -> None:
        if self._head.paused:
            raise ClusterConnectionError(
                f"Local cluster {self._name!r} is paused.", cluster=self._name, next_step="resume or kill it first."
            )
        if self._state == "up" and self._head.exit_status() is None:  # else it died, and was not buried yet
            return
        await self._kill()
        self._state = "starting"
        try:
            await self._head.start(lambda text: tell({"event": "progress", "text": text}), self._record)
            ports = self._head.ports
            assert ports is not None
            await self._client.open(ports.client)
            await self._dashboard.open(ports.dashboard)
        except BaseException:
            self._state = "down"
            raise
        self._state = "up"

    async def op_kill(self) -> None:
        await self._kill()

    async def op_pause(self) -> None:
        self._need_up()
        await self._head.pause()

    async def op_resume(self) -> None:
        self._need_up()
        await self._head.resume()

    async def op_cut(self) -> None:
        for forwarder in self._forwarders():
            await forwarder.cut()

    async def op_mend(self) -> None:
        self._impairment.thaw()
        self._impairment.delay_s = 0.0
        self._impairment.bytes_per_s = None
        for forwarder in self._forwarders():
            await forwarder.mend()

    async def op_cut_some(self, chance: float) -> Answer:
        return {"count": sum([await forwarder.cut_some(chance) for forwarder in self._forwarders()])}

    async def op_lose(self) -> Answer:
        return {"count": sum(forwarder.lose() for forwarder in self._forwarders())}

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

    def _need_up(self) -> None:
        if self._state != "up":
            raise ClusterConnectionError(
                f"Local cluster {self._name!r} is {self._state}.", cluster=self._name, next_step="start it first."
            )

    async def _kill(self) -> None:
        await self._client.shut()
        await self._dashboard.shut()
        await self._head.kill()
        self._state = "down"

    def _record(self, head: int | None, members: Sequence[Identity] = ()) -> None:
        me = Identity.of(os.getpid())
        assert me is not None
        ClusterRecord(me, Identity.of(head) if head else None, members).write(self._folder.record)

    async def _tidy(self) -> None:
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
                remove_tree(fleet)  # we are the last


def tell(message: dict[str, Any]) -> None:
    """One line to the parent; if it is gone, the end of our input says so soon enough."""
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

"""One Ray head under supervision: start it, freeze it, end it, and know its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.local_fleet import processes, shared_memory
from ray_multicluster_scheduler.local_fleet.description import LocalCluster
from ray_multicluster_scheduler.local_fleet.launch import cluster_environment, ray_command
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir, remove_tree
from ray_multicluster_scheduler.local_fleet.ports import PortBlock, Ports, claim
from ray_multicluster_scheduler.local_fleet.readiness import bare_not_ready, not_ready

_ATTEMPTS = 3
_READY_TIMEOUT_S = 120.0
_TAIL_LINES = 15


class RayHead:
    """The processes of one cluster. All methods are for one event loop, one at a time."""

    def __init__(self, cluster: LocalCluster, python: Path, folder: ClusterDir, marker: str) -> None:
        self._cluster = cluster
        self._python = python
        self._folder = folder
        self._marker = marker
        self._block: PortBlock | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def ports(self) -> Ports | None:
        return self._block.ports if self._block else None

    @property
    def pid(self) -> int | None:
        """Of ``ray start``, which leads the cluster's process session."""
        return self._process.pid if self._process else None

    def find(self) -> list[psutil.Process]:
        """Every living process of the cluster, whatever session it moved to."""
        found = list(processes.marked(self._marker))
        if self._process is not None:
            found += processes.in_session(self._process.pid)
        return processes.living(found + processes.descendants(os.getpid()))

    async def start(self, say: Callable[[str], None], started: Callable[[int], None]) -> None:
        """Start Ray and wait until it is ready. Raises ClusterConnectionError with the end of its log."""
        reason = ""
        for attempt in range(1, _ATTEMPTS + 1):
            self._spawn()
            assert self._process is not None
            started(self._process.pid)
            say(
                f"starting; Ray's own ports behind its addresses are from {self._ports().gcs}"
                + (f", attempt {attempt}" if attempt > 1 else "")
            )
            begin = time.monotonic()
            failure = await self._wait_ready()
            if failure is None:
                say(f"ready after {time.monotonic() - begin:.1f} s")
                return
            reason = f"{failure}\n{self._log_tail()}"
            await self.kill()
            say(f"attempt {attempt} failed: {failure}")
        raise ClusterConnectionError(
            f"Local cluster {self._cluster.name!r} did not start in {_ATTEMPTS} attempts: {reason}",
            cluster=self._cluster.name,
            next_step=f"read the lines above; check that `{self._python} -m ray.scripts.scripts start --help` works.",
        )

    async def kill(self) -> None:
        """SIGKILL every process and wait until none is left; also what they leave in shared memory."""
        await asyncio.to_thread(self._kill)
        if self._block is not None:
            self._block.release()
        self._block = self._process = None
        self.paused = False

    async def pause(self) -> None:
        try:
            await self._signal(signal.SIGSTOP)
        except ClusterConnectionError:
            await self._signal(signal.SIGCONT)  # half a cluster that stands still is of no use to anybody
            raise
        self.paused = True

    async def resume(self) -> None:
        await self._signal(signal.SIGCONT)
        self.paused = False

    async def _signal(self, number: signal.Signals) -> None:
        if not await asyncio.to_thread(processes.signal_all, self.find, number):
            raise ClusterConnectionError(
                f"Not every process of local cluster {self._cluster.name!r} took {number.name}.",
                cluster=self._cluster.name,
                next_step=f"try it again, or kill({self._cluster.name!r}) and start it again.",
            )

    def _kill(self) -> None:
        files = shared_memory.used_by(self.find())
        left = processes.end_all(self.find)
        if left:
            raise ClusterConnectionError(
                f"Processes {[p.pid for p in left]} of local cluster {self._cluster.name!r} survive SIGKILL.",
                cluster=self._cluster.name,
                next_step="look at them with ps: a process in state D waits for the kernel.",
            )
        if self._process is not None:
            self._process.wait()
        self.reap_orphans()
        shared_memory.remove_unused(files)

    def _spawn(self) -> None:
        remove_tree(self._folder.ray)
        self._folder.ray.mkdir(mode=0o700)
        self._block = claim()
        home = Path(self._cluster.home_dir) if self._cluster.home_dir else self._folder.home
        env = cluster_environment(
            os.environ,
            python=self._python,
            ports=self._block.ports,
            marker=self._marker,
            home=home,
            tmp=self._folder.tmp,
            token_path=self._folder.token,
        )
        with self._folder.log.open("wb") as log:
            self._process = subprocess.Popen(  # nosec B603 # our own program, without a shell
                ray_command(self._python, self._cluster, self._block.ports, self._folder.ray),
                env=env,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ports(self) -> Ports:
        assert self._block is not None
        return self._block.ports

    async def _wait_ready(self) -> str | None:
        """None when ready, else why it never will be."""
        token = self._folder.token.read_text(encoding="utf-8")
        deadline = time.monotonic() + _READY_TIMEOUT_S
        missing: str | None = "nothing answers yet"
        while self.exit_status() is None:
            if time.monotonic() > deadline:
                return f"not ready after {_READY_TIMEOUT_S:g} s: {missing}"
            missing = await asyncio.to_thread(self._missing, token)
            if missing is None:
                return None
            await asyncio.sleep(0.2)
        return f"`ray start` ended with status {self.exit_status()}"

    def _missing(self, token: str) -> str | None:
        if self._cluster.with_dashboard:
            return not_ready(self._ports(), token)
        return bare_not_ready(self._ports(), self._folder.log.read_text(encoding="utf-8", errors="replace"))

    def exit_status(self) -> int | None:
        """Of ``ray start``; None while it runs, or when there is none."""
        return self._process.poll() if self._process else None

    def reap_orphans(self) -> None:
        """Collect adopted processes that ended; ``ray start`` itself is left to :meth:`exit_status`."""
        if not hasattr(os, "waitid"):  # then the system has no subreaper either, and nothing was adopted
            return
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self.pid:
                    self.exit_status()
                else:
                    os.waitpid(ended.si_pid, os.WNOHANG)

    def _log_tail(self) -> str:
        text = self._folder.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

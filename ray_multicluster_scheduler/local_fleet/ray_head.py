"""One Ray head under supervision: its command line and environment, start, readiness checks, pause and kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.local_fleet import processes
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir, remove_tree
from ray_multicluster_scheduler.local_fleet.local_cluster import LocalCluster
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK, PortBlock, Ports, claim
from ray_multicluster_scheduler.local_fleet.processes import MARKER

_SCRUBBED_PREFIXES = ("RMCS_", "RAY_", "PYTHON", "CONDA_", "VIRTUAL_ENV", "COVERAGE_", "COV_CORE_", "PYTEST_")


def ray_command(python: Path, cluster: LocalCluster, ports: Ports, ray_dir: Path) -> list[str]:
    """``ray start --head --block`` with every port given: Ray's defaults collide between clusters."""
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--log-color=false", "--disable-usage-stats"]
    command += [
        f"--include-dashboard={str(cluster.with_dashboard).lower()}",
        f"--temp-dir={ray_dir}",
        f"--node-ip-address={LOOPBACK}",
        f"--dashboard-host={LOOPBACK}",
        f"--port={ports.gcs}",
        f"--ray-client-server-port={ports.client}",
        f"--dashboard-port={ports.dashboard}",
        f"--dashboard-agent-listen-port={ports.agent_http}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--metrics-export-port={ports.metrics}",
        f"--runtime-env-agent-port={ports.runtime_env}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        "--min-worker-port=0",  # any free port: a fixed range may be in use
        "--max-worker-port=0",
        f"--num-cpus={cluster.num_cpus}",
        f"--num-gpus={cluster.num_gpus}",
        f"--object-store-memory={cluster.object_store_memory}",
    ]
    if cluster.memory is not None:
        command.append(f"--memory={cluster.memory}")
    if cluster.resources:
        command.append(f"--resources={json.dumps(dict(cluster.resources))}")
    if cluster.labels:
        command.append("--labels=" + ",".join(f"{key}={value}" for key, value in cluster.labels.items()))
    return command


def cluster_environment(
    ours: Mapping[str, str], *, python: Path, ports: Ports, marker: str, home: Path, tmp: Path, token_path: Path
) -> dict[str, str]:
    """A clean environment, without our venv, our settings or another Ray."""
    env = {key: value for key, value in ours.items() if not key.startswith(_SCRUBBED_PREFIXES)}
    no_proxy = ",".join(filter(None, [env.get("no_proxy") or env.get("NO_PROXY"), "127.0.0.1,localhost"]))
    env.update(
        {
            MARKER: marker,
            "PATH": os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)]),
            "HOME": str(home),
            "TMPDIR": str(tmp),
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps every listener on loopback
            "RAY_ENABLE_AUTO_CONNECT": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token_path),
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            "AUTOSCALER_METRIC_PORT": str(ports.autoscaler_metrics),
            "DASHBOARD_METRIC_PORT": str(ports.dashboard_metrics),
        }
    )
    return env


_TIMEOUT_S = 3.0
_STARTED = "Ray runtime started"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, token: str, timeout_s: float = _TIMEOUT_S) -> bytes:
    """GET with the cluster's token, never through a proxy. Raises OSError (an HTTP error is one)."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with _direct.open(request, timeout=timeout_s) as answer:
        body: bytes = answer.read()
        return body


def not_ready(ports: Ports, token: str) -> str | None:
    """The first service that does not answer yet, as a sentence; None when the cluster is ready."""
    dashboard = f"http://{LOOPBACK}:{ports.dashboard}"
    for path, what in (("/api/version", "dashboard"), ("/api/gcs_healthz", "GCS"), ("/api/jobs/", "Jobs API")):
        try:
            fetch(dashboard + path, token)
        except OSError as error:
            return f"the {what} does not answer yet ({error})"
    try:
        nodes = json.loads(fetch(dashboard + "/api/v0/nodes", token))["data"]["result"]["result"]
        if not any(node["state"] == "ALIVE" for node in nodes):
            return "the node has not joined yet"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"the list of nodes cannot be read yet ({error})"
    for port, what in ((ports.client, "Ray Client server"), (ports.agent_http, "node's agent")):
        if not listening(port):
            return f"the {what} does not listen yet"
    return None


def listening(port: int) -> bool:
    """Whether a loopback port accepts connections."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


_ATTEMPTS = 3
_READY_TIMEOUT_S = 120.0
_TAIL_LINES = 15


class RayHead:
    """The Ray processes of one cluster. Call the methods from one event loop, one at a time."""

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
        """The process id of ``ray start``, which leads the cluster's process session."""
        return self._process.pid if self._process else None

    def find(self) -> list[psutil.Process]:
        """All living processes of the cluster, of any process session."""
        found = list(processes.marked(self._marker))
        if self._process is not None:
            found += processes.in_session(self._process.pid)
        return processes.living(found + processes.descendants(os.getpid()))

    async def start(self, progress: Callable[[str], None], started: Callable[[int], None]) -> None:
        """Start Ray and wait until it is ready. Raises ClusterConnectionError with the end of its log."""
        reason = ""
        for attempt in range(1, _ATTEMPTS + 1):
            self._spawn()
            assert self._process is not None
            started(self._process.pid)
            progress(
                f"starting; Ray's own ports behind its addresses are from {self._ports().gcs}"
                + (f", attempt {attempt}" if attempt > 1 else "")
            )
            begin = time.monotonic()
            failure = await self._wait_ready()
            if failure is None:
                progress(f"ready after {time.monotonic() - begin:.1f} s")
                return
            reason = f"{failure}\n{self._log_tail()}"
            await self.kill()
            progress(f"attempt {attempt} failed: {failure}")
        raise ClusterConnectionError(
            f"Local cluster {self._cluster.name!r} did not start in {_ATTEMPTS} attempts: {reason}",
            cluster=self._cluster.name,
            next_step=f"read the lines above; check that `{self._python} -m ray.scripts.scripts start --help` works.",
        )

    async def kill(self) -> None:
        """SIGKILL every process, wait until none is left, and remove their files in shared memory."""
        await asyncio.to_thread(self._kill)
        if self._block is not None:
            self._block.release()
        self._block = self._process = None
        self.paused = False

    async def pause(self) -> None:
        try:
            await self._signal(signal.SIGSTOP)
        except ClusterConnectionError:
            await self._signal(signal.SIGCONT)  # do not leave the cluster half paused
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
        files = processes.shared_memory_files(self.find())
        left = processes.end_all(self.find)
        if left:
            raise ClusterConnectionError(
                f"Processes {[p.pid for p in left]} of local cluster {self._cluster.name!r} survive SIGKILL.",
                cluster=self._cluster.name,
                next_step="check their state with ps: a process in state D waits for the kernel.",
            )
        if self._process is not None:
            self._process.wait()
        self.reap_orphans()
        processes.remove_unused_shared_memory(files)

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
        """Wait until the cluster is ready; returns None, or why it did not get ready."""
        token = self._folder.token.read_text(encoding="utf-8")
        deadline = time.monotonic() + _READY_TIMEOUT_S
        missing: str | None = "no service answers yet"
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
        if _STARTED not in self._folder.log.read_text(encoding="utf-8", errors="replace"):
            return "ray start has not finished yet"
        return None if listening(self._ports().client) else "the Ray Client server does not listen yet"

    def exit_status(self) -> int | None:
        """The exit status of ``ray start``; None if not started or still running."""
        return self._process.poll() if self._process else None

    def reap_orphans(self) -> None:
        """Reap adopted processes that ended; :meth:`exit_status` reaps ``ray start`` itself."""
        if not hasattr(os, "waitid"):  # macOS: it has no subreaper either, so no process was adopted
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

"""Reads the state of the agent's cluster: :class:`ClusterProbe` the nodes, for SNAPSHOT messages; the rest for HELLO.

Ray is imported inside the functions, so that :class:`MachineUsage` can be used without it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.model.resources import requestable

BUSY_INTERVAL_S = 0.2
QUIET_INTERVAL_S = 1.0
USAGE_INTERVAL_S = 5.0
LATE_S = 1.0
"""An answer that took longer than this is published even without a change: a HEAD message may have been sent."""
RAYLET_TIMEOUT_S, FIRST_RAYLET_TIMEOUT_S = 30.0, 2.0
"""Then the raylet is asked again; its silence counts from the first request."""
_RAYLET_TRIES = 3
_HEAD_MARK = "node:__internal_head__"
_STAT, _MEMORY = Path("/proc/stat"), Path("/proc/meminfo")


def agent_identity(carrier: str) -> dict[str, Any]:
    """The fields about this process and its cluster in HELLO; ``carrier``: how the agent was started."""
    import ray  # noqa: PLC0415 - see above

    return {
        "carrier": carrier,
        "ray_version": ray.__version__,
        "python_version": platform.python_version(),
        "session_id": session_name(),
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "job_id": ray.get_runtime_context().get_job_id(),
        "pid": os.getpid(),
    }


def session_name() -> str:
    """Ray's session of this cluster: a new one after each start of its head."""
    import ray  # noqa: PLC0415 - see above

    context = ray.get_runtime_context()
    if hasattr(context, "get_session_name"):
        return str(context.get_session_name())
    return str(ray._private.worker.global_worker.node.session_name)  # older versions of Ray


def session_folder() -> str:
    """Ray's folder for this session on this machine."""
    import ray  # noqa: PLC0415 - see above

    return str(ray._private.worker.global_worker.node.get_session_dir_path())


def object_store_bytes() -> float:
    """Object store capacity of this process's node, where its ``ray.put`` stores values."""
    import ray  # noqa: PLC0415 - see above

    node_id = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == node_id:
            return float(node["Resources"].get("object_store_memory", 0.0))
    return 0.0


def read_nodes() -> dict[str, Any]:
    """The head of a SNAPSHOT message, without ``observed``."""
    import ray  # noqa: PLC0415 - see above
    from ray._private.state import available_resources_per_node  # noqa: PLC0415 - see above

    free = available_resources_per_node()
    nodes = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        node_id = node["NodeID"]
        total = requestable(node["Resources"])
        left = requestable(free[node_id]) if node_id in free else None
        # Ray leaves out a resource that is used up: a missing name is zero, not unknown.
        known = None if left is None else {name: left.get(name, 0.0) for name in total}
        nodes.append({"node_id": node_id, "total": total, "free": known, "is_head": _HEAD_MARK in node["Resources"]})
    return {"nodes": sorted(nodes, key=lambda node: str(node["node_id"]))}


class MachineUsage:
    """Physical CPU and memory use of this machine, independent of Ray's reservations. Linux only.

    CPU use is measured between two readings, so the first one has memory only.
    """

    def __init__(self, stat: Path = _STAT, memory: Path = _MEMORY) -> None:
        self._stat, self._memory = stat, memory
        self._last_ticks: tuple[int, int] | None = None

    def read(self) -> dict[str, float] | None:
        """{cpu, memory}, each 0..1; None where it is not available."""
        try:
            busy, total = _ticks(self._stat.read_text())
            usage = {"memory": _memory_used(self._memory.read_text())}
        except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
            return None
        if self._last_ticks is not None and total > self._last_ticks[1]:
            share = (busy - self._last_ticks[0]) / (total - self._last_ticks[1])
            usage["cpu"] = round(min(max(share, 0.0), 1.0), 2)
        self._last_ticks = busy, total
        return usage


def _ticks(text: str) -> tuple[int, int]:
    """Busy and all ticks since boot: `cpu user nice system idle iowait irq softirq steal guest…`."""
    numbers = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def _memory_used(text: str) -> float:
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return round(1 - free / total, 2)


class RayletProbe:
    """Asks the raylet of this process's node, which must grant a worker before a call of ours can start. While it is
    stopped, the GCS goes on answering. Used on one thread."""

    def __init__(self) -> None:
        self._client: Any = None
        self._answered = False
        self._tries_left = _RAYLET_TRIES
        self._loop: asyncio.AbstractEventLoop | None = None

    def wait(self) -> None:
        """Wait until it answers; raises after RAYLET_TIMEOUT_S. A raylet that never answered is not waited for: perhaps
        it cannot be asked in this version of Ray."""
        if not self._answered and not self._tries_left:
            return
        try:
            self._client = self._client or _raylet_client()
            self._loop = self._loop or asyncio.new_event_loop()
            self._loop.run_until_complete(
                _ask(self._client, RAYLET_TIMEOUT_S if self._answered else FIRST_RAYLET_TIMEOUT_S)
            )
            self._answered = True
        except Exception as error:
            if self._answered:
                raise
            self._tries_left -= 1
            print(f"rmcs agent: the raylet cannot be asked: {error!r}", flush=True)


def _raylet_client() -> Any:
    import ray  # noqa: PLC0415 - see above
    from ray._raylet import RayletClient  # noqa: PLC0415 - see above

    node_id = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == node_id)
    return RayletClient(node["NodeManagerAddress"], node["NodeManagerPort"])


async def _ask(client: Any, timeout_s: float) -> None:
    """Its cheapest request, half a millisecond."""
    await client.async_get_worker_pids(timeout_ms=int(timeout_s * 1000))


class ClusterProbe:
    """Reads the nodes periodically on its own thread and publishes changes.

    Usage always changes a little, so it is read every few seconds only, and only in a cluster of one node, where this
    machine is the whole cluster.
    """

    def __init__(self, publish: Callable[[dict[str, Any]], object], is_busy: Callable[[], bool]) -> None:
        self._publish, self._is_busy = publish, is_busy
        self._wake = threading.Event()
        self._last: dict[str, Any] | None = None
        self._raylet = RayletProbe()
        self._machine = MachineUsage()
        self._usage: dict[str, float] | None = None
        self._next_usage = 0.0
        self._unanswered_since: float | None = None
        threading.Thread(target=self._loop, name="rmcs-probe", daemon=True).start()

    def now(self) -> None:
        """Read at once, and publish even without a change."""
        self._last = None
        self._wake.set()

    def silent_s(self) -> float:
        """Seconds since the open request to the head, its GCS or its raylet; 0 if there is none."""
        since = self._unanswered_since
        return 0.0 if since is None else time.monotonic() - since

    def _loop(self) -> None:
        while True:
            self._wake.clear()
            if self._unanswered_since is None:
                self._unanswered_since = time.monotonic()
            try:
                self._raylet.wait()
                nodes = read_nodes()
                usage_changed = self._update_usage(len(nodes["nodes"]))
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds when its head fails; try again
                print(f"rmcs agent: the cluster's resources cannot be read: {error}", flush=True)
            else:
                late, self._unanswered_since = self.silent_s() > LATE_S, None
                if late or usage_changed or nodes != self._last:
                    self._last = nodes
                    self._publish({**nodes, "observed": self._usage})
            self._wake.wait(BUSY_INTERVAL_S if self._is_busy() else QUIET_INTERVAL_S)

    def _update_usage(self, node_count: int) -> bool:
        """True if the usage was read and has changed."""
        now = time.monotonic()
        if now < self._next_usage:
            return False
        self._next_usage = now + USAGE_INTERVAL_S
        before, self._usage = self._usage, self._machine.read() if node_count == 1 else None
        return before != self._usage

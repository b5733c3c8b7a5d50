"""A worker node that joins a cluster of the local fleet, and can be lost as by a power cut."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from ray_multicluster_scheduler.local_fleet import LocalFleet, processes
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK, Ports, claim
from ray_multicluster_scheduler.local_fleet.processes import MARKER
from ray_multicluster_scheduler.local_fleet.ray_head import cluster_environment

OWN_MARKER = "TEST_SECOND_NODE"
"""Environment variable of every process of such a node, in addition to the marker by which the fleet ends it."""

PROGRAM = """
import json, signal, sys
from ray._private.node import Node
from ray._private.parameter import RayParams

Node(RayParams(**json.loads(sys.argv[1])), head=False)
signal.pause()
"""
"""Does what `ray start --address` does, which refuses to join a cluster on loopback."""


class SecondNode:
    """The processes of one worker node: its raylet, its agents, and the workers that it started."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self._process, self._mark = process, mark

    def find(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(OWN_MARKER) == self._mark:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return processes.living(found)

    def kill(self) -> None:
        """SIGKILL all its processes. May be repeated."""
        files = processes.shared_memory_files(self.find())
        left = processes.end_all(self.find)
        assert not left, f"processes of the node survive SIGKILL: {left}"
        self._process.wait()
        processes.remove_unused_shared_memory(files)

    @property
    def running(self) -> bool:
        return self._process.poll() is None


@contextmanager
def second_node(
    fleet: LocalFleet,
    cluster: str,
    python: Path,
    folder: Path,
    *,
    num_cpus: int,
    num_gpus: int = 0,
    resources: Mapping[str, float] | None = None,
) -> Iterator[SecondNode]:
    """Start it, with ports of its own; ``folder`` takes its log. At the end it is killed; Ray may notice that later."""
    mark = secrets.token_hex(8)
    files = fleet.folder(cluster)
    with ExitStack() as held:
        block = claim()
        held.callback(block.release)
        marker = psutil.Process(fleet.processes(cluster)[0]).environ()[MARKER]
        env = cluster_environment(
            os.environ,
            python=python,
            ports=block.ports,
            marker=marker,
            home=fleet.home(cluster),
            tmp=files.tmp,
            token_path=files.token,
        )
        log = held.enter_context((folder / "second-node.log").open("wb"))
        node = SecondNode(
            subprocess.Popen(
                _command(python, fleet.direct_ports(cluster).gcs, block.ports, num_cpus, num_gpus, resources or {}),
                env={**env, OWN_MARKER: mark},
                cwd=fleet.home(cluster),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ),
            mark,
        )
        held.callback(node.kill)
        yield node


def _command(
    python: Path, gcs: int, ports: Ports, num_cpus: int, num_gpus: int, resources: Mapping[str, float]
) -> list[str]:
    parameters = {
        "gcs_address": f"{LOOPBACK}:{gcs}",
        "node_ip_address": LOOPBACK,
        "dashboard_agent_listen_port": ports.agent_http,
        "metrics_agent_port": ports.agent_grpc,
        "metrics_export_port": ports.metrics,
        "runtime_env_agent_port": ports.runtime_env,
        "node_manager_port": ports.node_manager,
        "object_manager_port": ports.object_manager,
        "min_worker_port": 0,
        "max_worker_port": 0,
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "resources": dict(resources),
        "object_store_memory": 100_000_000,
    }
    return [str(python), "-c", PROGRAM, json.dumps(parameters)]

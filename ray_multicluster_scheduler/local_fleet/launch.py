"""How ``ray start`` is called: command line and environment; nothing here runs anything."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ray_multicluster_scheduler.local_fleet.description import LocalCluster
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK, Ports

MARKER = "RMCS_LOCAL_CLUSTER"
"""In the environment of every process of a local cluster; its value names fleet and cluster."""

_SCRUBBED_PREFIXES = ("RMCS_", "RAY_", "PYTHON", "CONDA_", "VIRTUAL_ENV", "COVERAGE_", "COV_CORE_", "PYTEST_")


def ray_command(python: Path, cluster: LocalCluster, ports: Ports, ray_dir: Path) -> list[str]:
    """``ray start --head --block`` with every port given: Ray's defaults collide between clusters."""
    command = [str(python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [
        "--log-color=false",
        "--disable-usage-stats",
        f"--include-dashboard={str(cluster.with_dashboard).lower()}",
    ]
    command += [f"--temp-dir={ray_dir}", f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}"]
    command += [
        f"--port={ports.gcs}",
        f"--ray-client-server-port={ports.client}",
        f"--dashboard-port={ports.dashboard}",
        f"--dashboard-agent-listen-port={ports.agent_http}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--metrics-export-port={ports.metrics}",
        f"--runtime-env-agent-port={ports.runtime_env}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        "--min-worker-port=0",  # workers take any free port: a fixed range can be taken by somebody else
        "--max-worker-port=0",
    ]
    command += [f"--num-cpus={cluster.num_cpus}", f"--num-gpus={cluster.num_gpus}"]
    command.append(f"--object-store-memory={cluster.object_store_memory}")
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
    """A clean environment: nothing of our venv, our settings or another Ray gets into the cluster."""
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

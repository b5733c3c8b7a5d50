"""For tests that break one cluster of the shared fleet: a configuration with only "mac", and its agents."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.local_fleet import LocalFleet

AGENT = "ray_multicluster_scheduler.scheduler.connection.gateway"


def config_of_mac(fleet: LocalFleet, folder: Path, **settings: object) -> Path:
    """A clusters.yaml with the cluster "mac" alone."""
    whole = yaml.safe_load(Path(fleet.config_path).read_text())
    entry = next(entry for entry in whole["clusters"] if entry["name"] == "mac")
    path = folder / "clusters.yaml"
    path.write_text(yaml.safe_dump({"settings": {**whole["settings"], **settings}, "clusters": [entry]}))
    return path


@contextmanager
def line_to_mac(fleet: LocalFleet, folder: Path, **settings: object) -> Iterator[UnifiedScheduler]:
    """A scheduler whose agent dials back through the cluster's forwarder, so that the connection can be cut."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    advertise = fleet.expose("mac", port)
    config = config_of_mac(fleet, folder, agent_listen=f"127.0.0.1:{port}", agent_advertise=advertise, **settings)
    with UnifiedScheduler(config) as scheduler:
        assert scheduler.submit_task(len, ("warm",)) == 4
        yield scheduler


def agents_of_mac(fleet: LocalFleet) -> list[psutil.Process]:
    """All link agents that run there."""
    found = []
    for pid in fleet.processes("mac"):
        try:
            process = psutil.Process(pid)
            if AGENT in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def until(condition: Callable[[], bool], seconds: float = 30.0, describe: Callable[[], object] = str) -> None:
    """Wait for what another process does; ``describe`` adds to the error message."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time {describe()}"
        time.sleep(0.02)

"""LocalFleet: real Ray clusters on this machine, for `rmcs demo`, `rmcs fleet`, tests and benchmarks.

It starts one supervisor process per cluster, and offers methods to stop, restart, pause and cut off clusters.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.local_fleet.interpreter import find_ray_python
from ray_multicluster_scheduler.local_fleet.layout import (
    CONFIG_NAME,
    PREFIX,
    Addresses,
    ClusterDir,
    FleetRecord,
    base_dir,
    check_replaceable,
    cluster_dir,
    write_config,
)
from ray_multicluster_scheduler.local_fleet.local_cluster import LocalCluster, check_distinct
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK, Ports
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.supervisor_client import SupervisorClient, collect, wait_for
from ray_multicluster_scheduler.local_fleet.sweep import sweep_fleet, sweep_stale

Progress = Callable[[str, str], None]
"""Called with a cluster's name and a line of progress."""

_START_TIMEOUT_S = 400.0
_SUPERVISOR_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 45.0


class LocalFleet:
    """Local Ray clusters, each a real ``ray start --head`` with its own ports, token, home and supervisor.

    Use it as a context manager, or call :meth:`start_all` and :meth:`stop`. ``state_dir`` is where clusters.yaml is
    written (by default the fleet's own temp dir). When this process dies, even by SIGKILL, the supervisors stop their
    clusters and remove all files.
    """

    def __init__(
        self,
        *clusters: LocalCluster,
        settings: Mapping[str, Any] | None = None,
        ray_python: str | Path | None = None,
        state_dir: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_distinct(clusters)
        self.clusters = clusters
        self._settings = dict(settings or {})
        self._ray_python = ray_python
        self._state_dir = Path(state_dir).expanduser().absolute() if state_dir else None
        self._progress: Progress = progress or (lambda _name, _text: None)
        self._root: Path | None = None
        self._record: FleetRecord | None = None
        self._clients: dict[str, SupervisorClient] = {}

    def __enter__(self) -> Self:
        self.start_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start_all(self) -> None:
        """Start all clusters concurrently and wait until they are ready. If one fails, all are stopped and removed."""
        if self._root is not None:
            raise ConfigurationError("This local fleet is already up.", next_step="stop() it first.")
        pythons = [find_ray_python(cluster.ray_python or self._ray_python) for cluster in self.clusters]
        for cluster in self.clusters:
            if cluster.home_dir and not Path(cluster.home_dir).is_dir():
                raise ConfigurationError(
                    f"home_dir of local cluster {cluster.name!r} is {cluster.home_dir}, which is not a folder.",
                    cluster=cluster.name,
                    next_step="make that folder, or leave home_dir out for a private one.",
                )
        base = base_dir()
        sweep_stale(base)
        try:
            self._prepare(base)
            self._supervise(pythons)
            self._start_concurrently()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all clusters and remove their files; returns when nothing is left. Safe to call again."""
        if self._root is None or self._record is None:
            return
        for client in self._clients.values():
            client.hang_up()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for client in self._clients.values():
            client.join(max(1.0, deadline - time.monotonic()))
        sweep_fleet(self._root, self._record)  # only finds something if a supervisor was killed
        self._clients.clear()
        self._root = self._record = None

    @property
    def config_path(self) -> Path:
        """The clusters.yaml that describes this fleet."""
        if self._record is None:
            raise self._not_up()
        return Path(self._record.config_path)

    def kill(self, name: str) -> None:
        """SIGKILL every process of a cluster, like a power cut; its published addresses refuse connections."""
        self._client(name).call("kill")

    def start(self, name: str) -> None:
        """Start a killed cluster again under the same published addresses, with the same token and home."""
        self._client(name).call("start", _START_TIMEOUT_S)

    def pause(self, name: str) -> None:
        """SIGSTOP every process of a cluster."""
        self._client(name).call("pause")

    def resume(self, name: str) -> None:
        """SIGCONT every process of a cluster."""
        self._client(name).call("resume")

    def cut(self, name: str) -> None:
        """Drop all connections to a cluster and refuse new ones; the cluster itself runs on."""
        self._client(name).call("cut")

    def cut_some(self, name: str, probability: float) -> int:
        """Drop each connection to a cluster with this probability; new ones work. Returns how many were dropped."""
        if not 0 <= probability <= 1:
            raise ConfigurationError(f"probability is {probability!r}.", cluster=name, next_step="give it as 0 to 1.")
        return int(self._client(name).call("cut_some", probability=probability)["count"])

    def blackhole(self, name: str) -> int:
        """Turn the open connections to a cluster into half-open ones, as after a router lost their state: their bytes
        and their ends are dropped for good, while new connections work. Returns how many there were."""
        return int(self._client(name).call("blackhole")["count"])

    def freeze(self, name: str) -> None:
        """Keep connections to a cluster open, but pass no byte: what a dead network looks like from here."""
        self._client(name).call("freeze")

    def delay(self, name: str, seconds: float) -> None:
        """Every byte to and from a cluster takes this much longer, each way."""
        if seconds < 0:
            raise ConfigurationError(f"seconds is {seconds!r}.", cluster=name, next_step="give seconds as 0 or more.")
        self._client(name).call("delay", seconds=seconds)

    def throttle(self, name: str, bytes_per_s: float | None) -> None:
        """Limit the bytes per second of all connections to a cluster together, each way; None removes the limit."""
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ConfigurationError(
                f"bytes_per_s is {bytes_per_s!r}.", cluster=name, next_step="give more than 0, or use freeze()."
            )
        self._client(name).call("throttle", bytes_per_s=bytes_per_s)

    def restore_network(self, name: str) -> None:
        """Undo cut, freeze, delay and throttle; half-open connections stay as they are."""
        self._client(name).call("restore_network")

    def expose(self, name: str, port: int) -> str:
        """An address at which the cluster's processes reach our ``port`` over the same impaired network."""
        return f"{LOOPBACK}:{self._client(name).call('expose', port=port)['port']}"

    def token(self, name: str) -> str:
        """The cluster's auth token."""
        return self.folder(name).token.read_text(encoding="utf-8")

    def addresses(self, name: str) -> Addresses:
        """The published addresses: they stay the same as long as the fleet is up."""
        published = self._client(name).published
        assert published is not None  # start_all waits for it
        return Addresses.on_loopback(**published)

    def direct_dashboard(self, name: str) -> str:
        """The address of the dashboard itself, without the forwarder; it changes with every start."""
        return f"http://{LOOPBACK}:{self.direct_ports(name).dashboard}"

    def direct_ports(self, name: str) -> Ports:
        """The ports that Ray itself listens on, without the forwarders; they change with every start."""
        ports = self._client(name).call("status")["ports"]
        if not ports:
            raise ClusterConnectionError(f"Local cluster {name!r} is down.", cluster=name, next_step="start() it.")
        return Ports(**ports)

    def processes(self, name: str) -> list[int]:
        """The ids of all living processes of a cluster."""
        return list(self._client(name).call("status")["pids"])

    def state(self, name: str) -> str:
        """``down``, ``starting``, ``up`` or ``paused``."""
        return str(self._client(name).call("status")["state"])

    def home(self, name: str) -> Path:
        """The home directory of a cluster's processes."""
        cluster = self.clusters[self._index(name)]
        return Path(cluster.home_dir) if cluster.home_dir else self.folder(name).home

    def supervisor(self, name: str) -> int:
        """The process id of a cluster's supervisor, which is not one of its processes."""
        return self._client(name).pid

    def _prepare(self, base: Path) -> None:
        self._root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        owner = Identity.of(os.getpid())
        assert owner is not None
        config_dir = self._state_dir or self._root
        config_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_replaceable(config_dir / CONFIG_NAME)
        self._record = FleetRecord(self._root.name, owner, len(self.clusters), str(config_dir / CONFIG_NAME))
        self._record.write(self._root)
        for index in range(len(self.clusters)):
            cluster_dir(self._root, index).make(token=secrets.token_hex(32))

    def _supervise(self, pythons: Sequence[Path]) -> None:
        assert self._root is not None
        assert self._record is not None
        for index, (cluster, python) in enumerate(zip(self.clusters, pythons, strict=True)):
            folder = cluster_dir(self._root, index)
            spec = {
                "cluster": cluster.to_dict(),
                "python": str(python),
                "folder": str(folder.root),
                "fleet_id": self._record.fleet_id,
                "marker": self._record.marker(index),
                "config_path": self._record.config_path,
            }
            self._clients[cluster.name] = SupervisorClient(cluster.name, folder, spec, self._progress)
        clients = list(self._clients.values())
        wait_for(clients, lambda: all(c.published for c in clients), time.monotonic() + _SUPERVISOR_TIMEOUT_S)
        for client in clients:
            if client.published is None:
                raise ClusterConnectionError(
                    f"The supervisor of local cluster {client.name!r} does not answer.",
                    cluster=client.name,
                    next_step="check that the machine is not overloaded, and try again.",
                )
        write_config(
            self.config_path,
            self._record.fleet_id,
            self._settings,
            [(cluster, self.addresses(cluster.name), self.folder(cluster.name)) for cluster in self.clusters],
        )

    def _start_concurrently(self) -> None:
        with ExitStack() as held:
            for client in self._clients.values():
                held.enter_context(client.lock)
            pending = [(client, client.post("start")) for client in self._clients.values()]
            collect(pending, _START_TIMEOUT_S)
            for client, number in pending:
                client.take_answer(number)

    def _client(self, name: str) -> SupervisorClient:
        self._index(name)
        if name not in self._clients:
            raise self._not_up()
        return self._clients[name]

    def folder(self, name: str) -> ClusterDir:
        index = self._index(name)
        if self._root is None:
            raise self._not_up()
        return cluster_dir(self._root, index)

    def _index(self, name: str) -> int:
        names = [cluster.name for cluster in self.clusters]
        if name not in names:
            raise ConfigurationError(
                f"This local fleet has no cluster {name!r}.", cluster=name, next_step=f"use one of {', '.join(names)}."
            )
        return names.index(name)

    def _not_up(self) -> ConfigurationError:
        return ConfigurationError(
            "This local fleet is not up.", next_step="use it in a `with` statement, or call start_all()."
        )

"""LocalFleet: real Ray clusters on this machine, for the demo, the tests and people's laptops."""

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
from ray_multicluster_scheduler.local_fleet.channel import Channel, collect, wait_for
from ray_multicluster_scheduler.local_fleet.config_file import CONFIG_NAME, Addresses, check_replaceable, write_config
from ray_multicluster_scheduler.local_fleet.description import LocalCluster, check_distinct
from ray_multicluster_scheduler.local_fleet.interpreter import find_ray_python
from ray_multicluster_scheduler.local_fleet.layout import (
    PREFIX,
    ClusterDir,
    FleetRecord,
    base_dir,
    cluster_dir,
    marker,
)
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK, Ports
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.sweep import sweep_fleet, sweep_stale

Progress = Callable[[str, str], None]
"""Called with a cluster's name and what happens to it."""

_START_TIMEOUT_S = 400.0
_SUPERVISOR_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 45.0


class LocalFleet:
    """Local Ray clusters, each a real ``ray start --head`` with its own ports, token, home and supervisor.

    Use it as a context manager, or call :meth:`start_all` and :meth:`stop`. ``state_dir`` is where clusters.yaml is
    written (by default the fleet's own temp dir). When this process dies, however, the supervisors notice and leave
    no process and no file behind.
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
        self._channels: dict[str, Channel] = {}

    def __enter__(self) -> Self:
        self.start_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start_all(self) -> None:
        """Start every cluster, side by side, and wait until all are ready. Nothing is left if one fails."""
        if self._root is not None:
            raise ConfigurationError("This local fleet is up already.", next_step="stop() it first.")
        pythons = [find_ray_python(cluster.ray_python or self._ray_python) for cluster in self.clusters]
        self._check_homes()
        base = base_dir()
        sweep_stale(base)
        try:
            self._prepare(base)
            self._supervise(pythons)
            self._start_side_by_side()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all clusters and remove everything of theirs; returns when it is gone. Harmless when repeated."""
        if self._root is None or self._record is None:
            return
        for channel in self._channels.values():
            channel.hang_up()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for channel in self._channels.values():
            channel.join(max(1.0, deadline - time.monotonic()))
        sweep_fleet(self._root, self._record)  # only finds something if a supervisor was killed
        self._channels.clear()
        self._root = self._record = None

    @property
    def config_path(self) -> Path:
        """The clusters.yaml that anything else can use."""
        if self._record is None:
            raise self._not_up()
        return Path(self._record.config_path)

    def kill(self, name: str) -> None:
        """SIGKILL every process of a cluster, as a power cut would; its published addresses refuse connections."""
        self._channel(name).call("kill")

    def start(self, name: str) -> None:
        """Start a killed cluster again under the same published addresses, with the same token and home."""
        self._channel(name).call("start", _START_TIMEOUT_S)

    def pause(self, name: str) -> None:
        """SIGSTOP every process of a cluster."""
        self._channel(name).call("pause")

    def resume(self, name: str) -> None:
        """SIGCONT every process of a cluster."""
        self._channel(name).call("resume")

    def cut(self, name: str) -> None:
        """Drop all connections to a cluster and refuse new ones; the cluster itself runs on."""
        self._channel(name).call("cut")

    def cut_some(self, name: str, chance: float) -> int:
        """Drop each connection to a cluster with this chance, and take new ones; returns how many were dropped."""
        if not 0 <= chance <= 1:
            raise ConfigurationError(f"chance is {chance!r}.", cluster=name, next_step="give it as 0 to 1.")
        return int(self._channel(name).call("cut_some", chance=chance)["count"])

    def lose(self, name: str) -> int:
        """Swallow all that the connections to a cluster carry from now on, their ends too; new ones work, and nothing
        mends the old ones: half-open connections, as a router leaves them that forgot them. Returns how many."""
        return int(self._channel(name).call("lose")["count"])

    def freeze(self, name: str) -> None:
        """Let connections to a cluster stand, but no byte pass: what a dead network looks like from here."""
        self._channel(name).call("freeze")

    def delay(self, name: str, seconds: float) -> None:
        """Every byte to and from a cluster takes this much longer, each way."""
        self._channel(name).call("delay", seconds=_at_least_zero("seconds", seconds))

    def throttle(self, name: str, bytes_per_s: float | None) -> None:
        """Limit what all connections to a cluster carry together, each way; None lifts the limit."""
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ConfigurationError(
                f"bytes_per_s is {bytes_per_s!r}.", cluster=name, next_step="give more than 0, or use freeze()."
            )
        self._channel(name).call("throttle", bytes_per_s=bytes_per_s)

    def mend(self, name: str) -> None:
        """Undo cut, freeze, delay and throttle; a connection that was lost stays so."""
        self._channel(name).call("mend")

    def expose(self, name: str, port: int) -> str:
        """An address at which the cluster's processes reach ``port`` of ours, impaired as its other addresses are."""
        return f"{LOOPBACK}:{self._channel(name).call('expose', port=port)['port']}"

    def token(self, name: str) -> str:
        """The cluster's auth token."""
        return self.folder(name).token.read_text(encoding="utf-8")

    def addresses(self, name: str) -> Addresses:
        """The published addresses: they stay the same as long as the fleet is up."""
        published = self._channel(name).published
        assert published is not None  # start_all waits for it
        return Addresses.on_loopback(**published)

    def direct_dashboard(self, name: str) -> str:
        """The dashboard itself, past the forwarder; it changes with every start."""
        return f"http://{LOOPBACK}:{self.direct_ports(name).dashboard}"

    def direct_ports(self, name: str) -> Ports:
        """What Ray itself listens on, past the forwarders; it changes with every start."""
        ports = self._channel(name).call("status")["ports"]
        if not ports:
            raise ClusterConnectionError(f"Local cluster {name!r} is down.", cluster=name, next_step="start() it.")
        return Ports(**ports)

    def processes(self, name: str) -> list[int]:
        """The ids of all living processes of a cluster."""
        return list(self._channel(name).call("status")["pids"])

    def state(self, name: str) -> str:
        """``down``, ``starting``, ``up`` or ``paused``."""
        return str(self._channel(name).call("status")["state"])

    def home(self, name: str) -> Path:
        """The home directory of a cluster's processes."""
        cluster = self.clusters[self._index(name)]
        return Path(cluster.home_dir) if cluster.home_dir else self.folder(name).home

    def supervisor(self, name: str) -> int:
        """The process id of a cluster's supervisor, which is not one of its processes."""
        return self._channel(name).pid

    def _check_homes(self) -> None:
        for cluster in self.clusters:
            if cluster.home_dir and not Path(cluster.home_dir).is_dir():
                raise ConfigurationError(
                    f"home_dir of local cluster {cluster.name!r} is {cluster.home_dir}, which is not a folder.",
                    cluster=cluster.name,
                    next_step="make that folder, or leave home_dir out for a private one.",
                )

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
                "marker": marker(self._record.fleet_id, index),
                "config_path": self._record.config_path,
            }
            self._channels[cluster.name] = Channel(cluster.name, folder, spec, self._progress)
        channels = list(self._channels.values())
        wait_for(channels, lambda: all(c.published for c in channels), time.monotonic() + _SUPERVISOR_TIMEOUT_S)
        for channel in channels:
            if channel.published is None:
                raise ClusterConnectionError(
                    f"The supervisor of local cluster {channel.name!r} does not answer.",
                    cluster=channel.name,
                    next_step="check that the machine is not overloaded, and try again.",
                )
        write_config(
            self.config_path,
            self._record.fleet_id,
            self._settings,
            [(cluster, self.addresses(cluster.name), self.folder(cluster.name)) for cluster in self.clusters],
        )

    def _start_side_by_side(self) -> None:
        with ExitStack() as held:
            for channel in self._channels.values():
                held.enter_context(channel.lock)
            pending = [(channel, channel.post("start")) for channel in self._channels.values()]
            collect(pending, _START_TIMEOUT_S)
            for channel, number in pending:
                channel.take(number)

    def _channel(self, name: str) -> Channel:
        self._index(name)
        if name not in self._channels:
            raise self._not_up()
        return self._channels[name]

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


def _at_least_zero(name: str, value: float) -> float:
    if value < 0:
        raise ConfigurationError(f"{name} is {value!r}.", next_step=f"give {name} as 0 or more.")
    return value

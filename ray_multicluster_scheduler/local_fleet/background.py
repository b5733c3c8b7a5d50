"""The background fleet of `rmcs fleet`: the daemon that holds it, and the functions that start, query and stop it.

The daemon (`main`, run as ``python -m``) reads what to start from the first line of standard input, reports progress on
standard output, one JSON object per line, and ends with ``ready`` or ``failed``. Its parent must confirm with a second
line, or the fleet is stopped, because no command would know of it. The daemon then runs until SIGTERM, and starts dead
clusters again on request: a control socket in the fleet's folder takes one JSON line, ``{"start": ["mac"]}``, and
answers with lines of progress and a last one, ``done`` or ``failed``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError, SchedulerError
from ray_multicluster_scheduler.local_fleet import processes
from ray_multicluster_scheduler.local_fleet.fleet import LocalFleet, Progress
from ray_multicluster_scheduler.local_fleet.fleet_home import (
    BackgroundCluster,
    BackgroundFleet,
    ClusterStatus,
    FleetHome,
    cluster_status,
)
from ray_multicluster_scheduler.local_fleet.layout import PREFIX, FleetRecord, base_dir
from ray_multicluster_scheduler.local_fleet.local_cluster import LocalCluster
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.supervisor_client import spawn_module
from ray_multicluster_scheduler.local_fleet.sweep import sweep_fleet, sweep_stale

_MODULE = "ray_multicluster_scheduler.local_fleet.background"
_SETTINGS = {"submission_interval_s": 0}
"""Jobs of a trial need not be 40 s apart: that protects clusters that other people use."""
_SOCKET_NAME = "control.sock"
_REQUEST_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 60.0
_SUPERVISOR_CLEANUP_S = 15.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# ---- for commands: start, query and stop the fleet


def running(home: FleetHome) -> BackgroundFleet | None:
    """The fleet that is up, or None."""
    fleet = home.read()
    return fleet if fleet is not None and fleet.holder.alive() else None


def others(home: FleetHome) -> list[tuple[FleetHome, BackgroundFleet]]:
    """Background fleets of this user under another RMCS_HOME that run now, found by their records in the temp dir."""
    found = []
    for root in sorted(base_dir().glob(f"{PREFIX}*")):
        record = FleetRecord.read(root) if processes.owned_by_us(root) else None
        other = FleetHome(Path(record.config_path).parent) if record is not None else home
        fleet = running(other) if other.root != home.root else None
        if fleet is not None and Path(fleet.root) == root:
            found.append((other, fleet))
    return found


def start(home: FleetHome, clusters: Sequence[LocalCluster], *, ray_python: Path, progress: Progress) -> None:
    """Start a fleet in the background and return when it is ready. Raises SchedulerError if that fails."""
    home.make()
    with home.log_path.open("wb") as log:
        daemon = spawn_module(_MODULE, log)
    spec = {"home": str(home.root), "clusters": [c.to_dict() for c in clusters], "ray_python": str(ray_python)}
    try:
        _await_ready(daemon, spec, home, progress)
    except BaseException:
        daemon.terminate()
        daemon.wait()
        raise
    finally:
        for pipe in (daemon.stdin, daemon.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
    daemon.returncode = 0  # it is independent now: this process does not wait for it


def _await_ready(daemon: subprocess.Popen[bytes], spec: object, home: FleetHome, progress: Progress) -> None:
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    with suppress(BrokenPipeError):  # it has ended already, which is found below
        daemon.stdin.write(json.dumps(spec).encode() + b"\n")
    if _follow(daemon.stdout, progress, last="ready"):
        daemon.stdin.write(b"confirmed\n")
        return
    output = home.log_path.read_text(errors="replace").strip()
    if not output:  # it was killed, or its log cannot be written
        output = f"exit code {daemon.wait()}, and {home.log_path} is empty"
    raise ClusterConnectionError(
        f"The local fleet ended while it was starting: {output}",
        next_step=f"check that the disk of {home.root} and the memory have room, and try again.",
    )


def _follow(lines: Iterable[bytes | str], progress: Progress, *, last: str) -> bool:
    """Pass progress on until the last message; False if it never comes. Raises ClusterConnectionError on ``failed``."""
    for line in lines:
        message = json.loads(line)
        if message["event"] == last:
            return True
        if message["event"] == "failed":
            raise ClusterConnectionError(message["error"], cluster=message["cluster"], next_step=message["next_step"])
        progress(message["name"], message["text"])
    return False


def start_again(home: FleetHome, names: Sequence[str], progress: Progress) -> None:
    """Start dead clusters of the running fleet under the addresses they had; return when they are ready.

    Raises ClusterConnectionError if that fails, or no fleet is up."""
    fleet = running(home)
    if fleet is None:
        raise ClusterConnectionError("No local fleet is up.", next_step="start one with `rmcs fleet up`.")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(Path(fleet.root) / _SOCKET_NAME))
            connection.sendall(json.dumps({"start": list(names)}).encode() + b"\n")
        except OSError as error:
            raise _no_answer(error.strerror or str(error)) from error
        with connection.makefile(encoding="utf-8") as answers:
            if not _follow(answers, progress, last="done"):
                raise _no_answer("it ended before it answered")


def _no_answer(reason: str) -> ClusterConnectionError:
    return ClusterConnectionError(
        f"The process that holds the local fleet does not answer: {reason}.",
        next_step="`rmcs fleet down`, then `rmcs fleet up`.",
    )


def stop(home: FleetHome) -> bool:
    """Stop the fleet, and remove the remains of killed fleets. Returns False if there were none of either."""
    fleet = home.read()
    if fleet is not None:
        if fleet.holder.alive():
            _end_holder(fleet.holder)
        _clean_up(Path(fleet.root))
        home.forget()
    swept = sweep_stale(base_dir())
    return fleet is not None or bool(swept)


def status(home: FleetHome) -> list[ClusterStatus]:
    """The current status of each cluster of the running fleet; empty if none is up."""
    fleet = running(home)
    return [cluster_status(cluster) for cluster in fleet.clusters] if fleet else []


def _end_holder(holder: Identity) -> None:
    for number, timeout_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.kill(holder.pid, number)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not holder.alive():
                return
            time.sleep(0.1)
    raise ClusterConnectionError(
        f"The process {holder.pid}, which holds the local fleet, survives SIGKILL.",
        next_step="check its state with ps: a process in state D waits for the kernel.",
    )


def _clean_up(root: Path) -> None:
    """If the holder was killed, wait for its supervisors to clean up, then remove the rest."""
    deadline = time.monotonic() + _SUPERVISOR_CLEANUP_S
    while root.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    record = FleetRecord.read(root)
    if record is not None:
        sweep_fleet(root, record)


# ---- the daemon


class _StopRequested(BaseException):
    """Raised by the signal handlers to stop the process."""


class _ProgressRouter:
    """Sends the fleet's progress to the current requester, or else to the starter of the fleet."""

    def __init__(self, default: Progress) -> None:
        self.current = self.default = default

    def __call__(self, name: str, text: str) -> None:
        self.current(name, text)


class ControlSocket:
    """Serves one request at a time; a request is completed even if its sender disconnects."""

    def __init__(self, fleet: LocalFleet, progress: _ProgressRouter, root: Path) -> None:
        self._fleet, self._progress = fleet, progress
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(root / _SOCKET_NAME))
        self._listener.listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def serve_one(self) -> None:
        """Wait for one request and carry it out. A signal handler may raise through this."""
        connection, _ = self._listener.accept()

        def send(message: dict[str, Any]) -> None:
            with suppress(OSError):  # the requester has gone; its request is carried out all the same
                connection.sendall(json.dumps(message).encode() + b"\n")

        with connection:
            connection.settimeout(_REQUEST_TIMEOUT_S)
            self._progress.current = lambda name, text: send({"event": "progress", "name": name, "text": text})
            try:
                for name in _requested_names(connection):
                    self._fleet.start(name)
            except SchedulerError as error:
                send(_failure(error))
            except Exception as error:  # noqa: BLE001 - the requester gets the error, and the other clusters go on
                send(_failure(ClusterConnectionError(f"The request failed: {error!r}.")))
            else:
                send({"event": "done"})
            finally:
                self._progress.current = self._progress.default


def _requested_names(connection: socket.socket) -> list[str]:
    """Raises ConfigurationError if the request cannot be read."""
    try:
        with connection.makefile(encoding="utf-8") as lines:
            return [str(name) for name in json.loads(lines.readline())["start"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError('The request is not a JSON line such as {"start": ["mac"]}.') from error


def _failure(error: SchedulerError) -> dict[str, Any]:
    return {"event": "failed", "error": error.message, "cluster": error.cluster, "next_step": error.next_step}


def hold(
    home: FleetHome,
    clusters: Sequence[LocalCluster],
    *,
    ray_python: Path,
    progress: Progress,
    ready: Callable[[LocalFleet], bool],
) -> None:
    """Run a fleet, recorded in ``home``, until SIGTERM, SIGINT or SIGHUP, or until ``ready`` returns False.

    Raises ConfigurationError if another process holds one, ClusterConnectionError if it cannot be started.
    """
    with home.held(), suppress(_StopRequested):
        for number in _STOP_SIGNALS:
            signal.signal(number, _request_stop)
        try:
            router = _ProgressRouter(progress)
            with LocalFleet(
                *clusters, settings=_SETTINGS, ray_python=ray_python, state_dir=home.root, progress=router
            ) as fleet:
                record = _describe(fleet)
                with ControlSocket(fleet, router, Path(record.root)) as control:
                    home.write(record)
                    if ready(fleet):
                        while True:
                            control.serve_one()
        finally:
            home.forget()


def _request_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise _StopRequested


def _describe(fleet: LocalFleet) -> BackgroundFleet:
    holder = Identity.of(os.getpid())
    assert holder is not None
    clusters = [
        BackgroundCluster(
            each.name, list(each.tags), fleet.addresses(each.name), str(fleet.folder(each.name).root), each.num_cpus
        )
        for each in fleet.clusters
    ]
    return BackgroundFleet(holder, str(Path(clusters[0].folder).parent), clusters)


def _print_message(message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)


def main() -> None:
    """Entry point of the daemon process."""
    spec = json.loads(sys.stdin.readline())

    def ready(_fleet: LocalFleet) -> bool:
        _print_message({"event": "ready"})
        return bool(sys.stdin.readline())

    try:
        hold(
            FleetHome(Path(spec["home"])),
            [LocalCluster(**each) for each in spec["clusters"]],
            ray_python=Path(spec["ray_python"]),
            progress=lambda name, text: _print_message({"event": "progress", "name": name, "text": text}),
            ready=ready,
        )
    except SchedulerError as error:
        _print_message(_failure(error))
        sys.exit(1)
    except OSError as error:  # such as a full disk, on which the log with a traceback may be as well
        reason = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        failed = ConfigurationError(
            f"The files of the local fleet cannot be written: {reason}.",
            next_step="free space there, or move them: RMCS_HOME for the configuration, TMPDIR for the rest.",
        )
        _print_message(_failure(failed))
        sys.exit(1)


if __name__ == "__main__":
    main()

"""``rmcs fleet``: start a fleet that outlives the command, look at it, end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.local_fleet import desk
from ray_multicluster_scheduler.local_fleet.channel import import_environment
from ray_multicluster_scheduler.local_fleet.description import LocalCluster
from ray_multicluster_scheduler.local_fleet.fleet import Progress
from ray_multicluster_scheduler.local_fleet.fleet_home import ClusterStatus, FleetHome, KnownFleet, cluster_status
from ray_multicluster_scheduler.local_fleet.layout import FleetRecord, base_dir
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.sweep import sweep_fleet, sweep_stale

_MODULE = "ray_multicluster_scheduler.local_fleet.daemon"
_STOP_TIMEOUT_S = 60.0
_SELF_TIDY_S = 15.0


def running(home: FleetHome) -> KnownFleet | None:
    """The fleet that is up, or None."""
    known = home.read()
    return known if known is not None and known.holder.alive() else None


def start(home: FleetHome, clusters: Sequence[LocalCluster], *, ray_python: Path, progress: Progress) -> None:
    """Start a fleet in the background and return when it is ready. Raises SchedulerError if it does not get there."""
    home.make()
    with home.log_path.open("wb") as log:
        daemon = subprocess.Popen(  # nosec B603 # our own program, without a shell
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=import_environment(),
            cwd="/",
            text=True,
            start_new_session=True,
        )
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
    daemon.returncode = 0  # it is on its own from here: nothing of this process waits for it


def _await_ready(daemon: subprocess.Popen[str], spec: object, home: FleetHome, progress: Progress) -> None:
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    with suppress(BrokenPipeError):  # it has ended already; the loop below finds that
        daemon.stdin.write(json.dumps(spec) + "\n")
        daemon.stdin.flush()
    for line in daemon.stdout:
        message = json.loads(line)
        if message["event"] == "progress":
            progress(message["name"], message["text"])
        elif message["event"] == "failed":
            raise ClusterConnectionError(message["error"], cluster=message["cluster"], next_step=message["next_step"])
        else:
            daemon.stdin.write("confirmed\n")
            daemon.stdin.flush()
            return
    raise _ended_while_starting(daemon, home)


def _ended_while_starting(daemon: subprocess.Popen[str], home: FleetHome) -> ClusterConnectionError:
    said = home.log_path.read_text(errors="replace").strip()
    if not said:  # as where it was killed, or its log cannot be written
        said = f"exit code {daemon.wait()}, without a word in {home.log_path}"
    return ClusterConnectionError(
        f"The local fleet ended while it was starting: {said}",
        next_step=f"see that there is room on the disk of {home.root} and memory to have, and try again.",
    )


def start_again(home: FleetHome, names: Sequence[str], progress: Progress) -> None:
    """Start clusters of the running fleet that died, under the addresses they had; return when they are ready.

    Raises ClusterConnectionError if one does not get there, or the fleet is not up."""
    known = running(home)
    if known is None:
        raise ClusterConnectionError("No local fleet is up.", next_step="start one with `rmcs fleet up`.")
    desk.start_again(Path(known.root), names, progress)


def stop(home: FleetHome) -> bool:
    """End the fleet and wait until nothing of it is left; also what killed ones left. False if none was up."""
    known = home.read()
    if known is not None:
        if known.holder.alive():
            _end_holder(known.holder)
        _tidy_after(Path(known.root))
        home.forget()
    swept = sweep_stale(base_dir())
    return known is not None or bool(swept)


def status(home: FleetHome) -> list[ClusterStatus]:
    """How each cluster of the running fleet looks now; empty if none is up."""
    known = running(home)
    return [cluster_status(cluster) for cluster in known.clusters] if known else []


def _end_holder(holder: Identity) -> None:
    for number, patience_s in ((signal.SIGTERM, _STOP_TIMEOUT_S), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.kill(holder.pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not holder.alive():
                return
            time.sleep(0.1)
    raise ClusterConnectionError(
        f"The process {holder.pid}, which holds the local fleet, survives SIGKILL.",
        next_step="look at it with ps: a process in state D waits for the kernel.",
    )


def _tidy_after(root: Path) -> None:
    """A holder that was killed leaves the work to its supervisors; what they do not do is done here."""
    deadline = time.monotonic() + _SELF_TIDY_S
    while root.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    record = FleetRecord.read(root)
    if record is not None:
        sweep_fleet(root, record)

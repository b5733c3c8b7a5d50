"""The process that holds the background fleet of ``rmcs fleet up``.

Its first line of standard input says what to start. It reports progress on standard output, one JSON object per line,
and ends with ``ready`` or ``failed``; whoever started it must then confirm with a second line, or the fleet is stopped:
nobody would know of it. From then on it waits for SIGTERM, and starts clusters again that died if it is asked to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.local_fleet.description import LocalCluster
from ray_multicluster_scheduler.local_fleet.desk import Desk, Voice
from ray_multicluster_scheduler.local_fleet.fleet import LocalFleet, Progress
from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome, KnownCluster, KnownFleet
from ray_multicluster_scheduler.local_fleet.processes import Identity

_SETTINGS = {"submission_interval_s": 0}
"""Whoever tries it out does not want to wait 40 s between two jobs; what that protects is nobody's cluster here."""


class _Asked(BaseException):
    """A signal asked us to stop."""


def hold(
    home: FleetHome,
    clusters: Sequence[LocalCluster],
    *,
    ray_python: Path,
    progress: Progress,
    ready: Callable[[LocalFleet], bool],
) -> None:
    """Run a fleet, recorded in ``home``, until SIGTERM, SIGINT or SIGHUP, or until ``ready`` says no.

    Raises ConfigurationError if another process holds one, ClusterConnectionError if it cannot be started.
    """
    with home.held(), suppress(_Asked):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _ask)
        try:
            voice = Voice(progress)
            with LocalFleet(
                *clusters, settings=_SETTINGS, ray_python=ray_python, state_dir=home.root, progress=voice
            ) as fleet:
                known = _known(fleet)
                with Desk(fleet, voice, Path(known.root)) as desk:
                    home.write(known)
                    if ready(fleet):
                        while True:
                            desk.serve()
        finally:
            home.forget()


def _ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # once is enough: a second one must not interrupt the tidying up
    raise _Asked


def _known(fleet: LocalFleet) -> KnownFleet:
    holder = Identity.of(os.getpid())
    assert holder is not None
    clusters = [
        KnownCluster(
            each.name, list(each.tags), fleet.addresses(each.name), str(fleet.folder(each.name).root), each.num_cpus
        )
        for each in fleet.clusters
    ]
    return KnownFleet(holder, str(Path(clusters[0].folder).parent), clusters)


def _tell(message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)


def main() -> None:
    """Entry point of the process."""
    spec = json.loads(sys.stdin.readline())
    confirmed: list[bool] = []

    def ready(_fleet: LocalFleet) -> bool:
        if not confirmed:
            _tell({"event": "ready"})
            confirmed.append(bool(sys.stdin.readline()))
        return confirmed[0]

    try:
        hold(
            FleetHome(Path(spec["home"])),
            [LocalCluster(**each) for each in spec["clusters"]],
            ray_python=Path(spec["ray_python"]),
            progress=lambda name, text: _tell({"event": "progress", "name": name, "text": text}),
            ready=ready,
        )
    except SchedulerError as error:
        _tell({"event": "failed", "error": error.message, "cluster": error.cluster, "next_step": error.next_step})
        sys.exit(1)
    except OSError as error:  # of a full disk, say, on which the log, where a traceback goes, may be, too
        said = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        step = "make room there, or have them elsewhere: RMCS_HOME for the configuration, TMPDIR for the rest."
        failed = f"The files of the local fleet cannot be written: {said}."
        _tell({"event": "failed", "error": failed, "cluster": None, "next_step": step})
        sys.exit(1)


if __name__ == "__main__":
    main()

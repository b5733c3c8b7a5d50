"""Where the process that holds a fleet is asked to start clusters again that died.

A socket in the fleet's own folder, which only its user can enter. One JSON line in, ``{"start": ["mac"]}``; out come
lines of progress and a last one, ``done`` or ``failed``. Both ends are here.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError, SchedulerError
from ray_multicluster_scheduler.local_fleet.fleet import LocalFleet, Progress

_NAME = "desk.sock"
_PATIENCE_S = 10.0
"""For the one line of whoever has connected."""


class Voice:
    """Whom a fleet tells its progress: whoever asked last, else whoever started it."""

    def __init__(self, first: Progress) -> None:
        self.now = self.first = first

    def __call__(self, name: str, text: str) -> None:
        self.now(name, text)


class Desk:
    """The holder's end. One is served at a time; whoever goes away meanwhile changes nothing."""

    def __init__(self, fleet: LocalFleet, voice: Voice, root: Path) -> None:
        self._fleet, self._voice = fleet, voice
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(root / _NAME))
        self._listener.listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def serve(self) -> None:
        """Wait for one, and do what it asks. A signal's handler may raise through this."""
        caller, _ = self._listener.accept()
        with caller:
            caller.settimeout(_PATIENCE_S)
            self._voice.now = lambda name, text: _tell(caller, {"event": "progress", "name": name, "text": text})
            try:
                for name in _asked_for(caller):
                    self._fleet.start(name)
            except SchedulerError as error:
                said = {"error": error.message, "cluster": error.cluster, "next_step": error.next_step}
                _tell(caller, {"event": "failed", **said})
            except Exception as error:  # noqa: BLE001 - whoever asked is told, and the clusters that run go on
                said = {"error": f"It failed: {error!r}.", "cluster": None, "next_step": None}
                _tell(caller, {"event": "failed", **said})
            else:
                _tell(caller, {"event": "done"})
            finally:
                self._voice.now = self._voice.first


def _asked_for(caller: socket.socket) -> list[str]:
    """Raises ConfigurationError for what is no question, or nothing at all."""
    try:
        with caller.makefile(encoding="utf-8") as lines:
            return [str(name) for name in json.loads(lines.readline())["start"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError("That is no question.") from error


def start_again(root: Path, names: Sequence[str], progress: Progress) -> None:
    """The asker's end: returns when these clusters of the fleet in ``root`` are up. Raises ClusterConnectionError."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(str(root / _NAME))
            line.sendall(json.dumps({"start": list(names)}).encode() + b"\n")
        except OSError as error:
            raise _not_there(error.strerror or str(error)) from error
        with line.makefile(encoding="utf-8") as answers:
            for answer in answers:
                said = json.loads(answer)
                if said["event"] == "done":
                    return
                if said["event"] == "failed":
                    raise ClusterConnectionError(said["error"], cluster=said["cluster"], next_step=said["next_step"])
                progress(said["name"], said["text"])
    raise _not_there("it ended meanwhile")


def _tell(caller: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # it has gone; what it asked for is done all the same
        caller.sendall(json.dumps(message).encode() + b"\n")


def _not_there(why: str) -> ClusterConnectionError:
    return ClusterConnectionError(
        f"The process that holds the local fleet cannot be asked: {why}.",
        next_step="`rmcs fleet down`, then `rmcs fleet up`.",
    )

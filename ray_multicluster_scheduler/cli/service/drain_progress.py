"""What a service that drains still waits for, told to whoever waits for its end."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli.service.client import path_of
from ray_multicluster_scheduler.cli.service.item_wait import Deadline

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

ASK_AGAIN_S = 1.0
_PATIENCE_S = 2.0
_UNKNOWN = "what is not over cannot be seen from here"


class Draining:
    """The service that has this folder and listens at ``address``, which waits at most ``drain_s`` from now on."""

    def __init__(self, folder: Path, address: str | None, drain_s: float) -> None:
        self._folder, self._address, self._until = folder, address, Deadline(drain_s)
        self._said, self._answered, self._asked_at = _UNKNOWN, False, -ASK_AGAIN_S

    def words(self) -> str:
        """In one line: what is not over, and for how long that may go on. The service is asked now and then; one that
        does not answer any more has stopped to wait."""
        if time.monotonic() - self._asked_at >= ASK_AGAIN_S:
            self._said = self._look()
            self._asked_at = time.monotonic()
        left = self._until.left() or 0.0
        return "the service stops" if not left or not self._said else f"{self._said}; at most {left:.0f} s more"

    def _look(self) -> str:
        """Empty: nothing is waited for."""
        from ray_multicluster_scheduler.common.exception import SchedulerError

        if self._address is None:
            return _UNKNOWN
        try:
            said = _not_over(self._service(self._address))
        except SchedulerError:
            return "" if self._answered else _UNKNOWN
        self._answered = True
        return said

    def _service(self, address: str) -> Service:
        """Asked with the token of that folder, wherever that is, unless another one was given."""
        from ray_multicluster_scheduler.app.client_api.remote.credentials import find_credentials
        from ray_multicluster_scheduler.cli.service.client import Service

        proof = find_credentials(address, {**os.environ, "RMCS_HOME": str(self._folder)})
        return Service(address, proof, _PATIENCE_S)


def _not_over(service: Service) -> str:
    """How many items are on which clusters, and how many wait; an actor is not waited for."""
    queue = service.get(path_of("queue"), limit=1)
    actors = Counter(str(row["cluster"]) for row in service.get(path_of("actors"))["actors"] if _is_there(row))
    rows = service.get(path_of("clusters"))["clusters"]
    there = {str(row["name"]): int(row["items"] or 0) - actors[str(row["name"])] for row in rows}
    waiting = int(queue["depth"]) - int(queue["kinds"].get("actor", 0))
    parts = [f"{count} on {name}" for name, count in there.items() if count > 0]
    parts += [f"{waiting} waiting"] if waiting > 0 else []
    return f"not over: {', '.join(parts)}" if parts else ""


def _is_there(row: dict[str, Any]) -> bool:
    from ray_multicluster_scheduler.cli.arguments.selectors import UNFINISHED, WAITING

    return row["state"] in UNFINISHED and row["state"] not in WAITING

"""Which item is this code running for? Set by the worker-side wrapper, read by ``current()``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CurrentItem:
    """The item that this code belongs to.

    ``fence`` only grows: storage that remembers the highest fence it saw can refuse a late attempt.
    """

    id: str
    attempt: int
    fence: int
    cluster: str


_running: CurrentItem | None = None


def set_current(item: CurrentItem | None) -> None:
    """For the worker-side wrapper: a worker process runs one task at a time."""
    global _running  # noqa: PLW0603 - threads that user code starts must see it too
    _running = item


def get_current(environ: Mapping[str, str] = os.environ) -> CurrentItem | None:
    """The running item: set by the wrapper in tasks, by the environment in jobs, else None."""
    if _running is not None:
        return _running
    try:
        return CurrentItem(
            id=environ["RMCS_TASK_ID"],
            attempt=int(environ["RMCS_ATTEMPT"]),
            fence=int(environ["RMCS_FENCE"]),
            cluster=environ["RMCS_CLUSTER"],
        )
    except (KeyError, ValueError):
        return None

"""Which item is this code running for? Set by the worker-side wrapper, read by ``current()``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

INSIDE_VARIABLE = "RMCS_INSIDE"
"""Names the cluster in the environment of an agent's job, which Ray gives to every worker of that job."""


@dataclass(frozen=True, slots=True)
class CurrentItem:
    """The item that this code belongs to.

    ``fence`` only grows: storage that remembers the highest fence it saw can refuse a late attempt. ``member`` is the
    position of this one in its gang, from 0, where the item is a gang.
    """

    id: str
    attempt: int
    fence: int
    cluster: str
    member: int | None = None

    @property
    def part_id(self) -> str:
        """Its own id, told from the other members' of its gang."""
        return self.id if self.member is None else member_id(self.id, self.member)


def member_id(gang_id: str, member: int) -> str:
    """By which one member of a gang is known, where it has to be told from the others."""
    return f"{gang_id}.{member}"


_running: CurrentItem | None = None


def set_current(item: CurrentItem | None) -> None:
    """For the worker-side wrapper: a worker process runs one task at a time."""
    global _running  # noqa: PLW0603 - threads that user code starts must see it too
    _running = item


def cluster_here(environ: Mapping[str, str] = os.environ) -> str | None:
    """The cluster that this code runs inside of, or None outside. Known before the item is, and where there is none:
    in a task that was given to Ray directly, or while a worker still loads what it is to run."""
    current = get_current(environ)
    return environ.get(INSIDE_VARIABLE) if current is None else current.cluster


def in_environment(environ: Mapping[str, str] = os.environ) -> bool:
    """Does the environment say it? Then it is a job's, and all of the job's own workers are told the same."""
    return "RMCS_TASK_ID" in environ


def get_current(environ: Mapping[str, str] = os.environ) -> CurrentItem | None:
    """The running item: set by the wrapper in tasks and actors, by the environment in jobs, else None."""
    if _running is not None:
        return _running
    if "RMCS_TASK_ID" not in environ:  # asked at every call of a verb, so nothing slower outside of a cluster
        return None
    try:
        return CurrentItem(
            id=environ["RMCS_TASK_ID"],
            attempt=int(environ["RMCS_ATTEMPT"]),
            fence=int(environ["RMCS_FENCE"]),
            cluster=environ["RMCS_CLUSTER"],
        )
    except (KeyError, ValueError):
        return None

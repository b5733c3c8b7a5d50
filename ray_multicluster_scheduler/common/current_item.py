"""CurrentItem: the item that this process runs. The worker-side wrapper sets it; user code reads it by ``current()``.

In the process of a job's entrypoint, environment variables (``RMCS_TASK_ID``, …) describe the item instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

INSIDE_VARIABLE = "RMCS_INSIDE"
"""Environment variable with the name of the cluster; Ray passes it from the agent's job to all workers of that job."""


@dataclass(frozen=True, slots=True)
class CurrentItem:
    """The running item and its attempt.

    ``fence`` only grows: storage that remembers the highest fence it saw can refuse a late attempt. ``member`` is the
    position of this member in its gang, from 0; None if the item is no gang.
    """

    id: str
    attempt: int
    fence: int
    cluster: str
    member: int | None = None

    @property
    def part_id(self) -> str:
        """The id of the item, or of this member of a gang."""
        return self.id if self.member is None else member_id(self.id, self.member)


def member_id(gang_id: str, member: int) -> str:
    """The id of one member of a gang."""
    return f"{gang_id}.{member}"


_running: CurrentItem | None = None


def set_current(item: CurrentItem | None) -> None:
    """Set the running item; None at its end. For the worker-side wrapper: a worker process runs one task at a time."""
    global _running  # noqa: PLW0603 - threads that user code starts must see it too
    _running = item


def cluster_here(environ: Mapping[str, str] = os.environ) -> str | None:
    """The cluster that this process belongs to; None outside of a cluster.

    Also known without a current item: in a task submitted to Ray directly, or while a worker still unpickles its task.
    """
    current = get_current(environ)
    return environ.get(INSIDE_VARIABLE) if current is None else current.cluster


def in_environment(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment names the item: this process belongs to a job, whose workers inherit its environment."""
    return "RMCS_TASK_ID" in environ


def get_current(environ: Mapping[str, str] = os.environ) -> CurrentItem | None:
    """The running item: set by the wrapper in tasks and actors, by the environment in jobs, else None."""
    if _running is not None:
        return _running
    if "RMCS_TASK_ID" not in environ:  # fast path: every call of a submit verb checks this
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

"""Functions that go to a cluster by value, and a cluster that they keep full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler import TaskState, UnifiedScheduler, submit_task_async
from tests.support.mac_alone import until

WHOLE = {"CPU": 2}
"""All that one of the clusters has."""


def all_idle(scheduler: UnifiedScheduler) -> None:
    """Wait until both clusters are known to be free: a tag or a preference is a wish, and only then it decides."""
    until(lambda: all((row["free"] or {}).get("CPU") == 2 for row in scheduler.list_clusters(refresh=True)), 60)


def where() -> Any:
    """A function that goes by value and tells its cluster."""

    def run() -> str:
        from ray_multicluster_scheduler import current

        return current().cluster

    return run


def noting() -> Any:
    """One that goes by value and adds a line to a file."""

    def run(path: str, line: str) -> str:
        with open(path, "a") as file:
            file.write(f"{line}\n")
        return line

    return run


def waiting() -> Any:
    """One that goes by value and ends when a file is there."""

    def run(path: str) -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.02)
        return "went"

    return run


@contextmanager
def full(folder: Path, cluster: str = "mac") -> Iterator[Path]:
    """That cluster has no free CPU, until the file that is given is made; it is made at the end in any case."""
    go = folder / f"go-{cluster}"
    holder = submit_task_async(waiting(), (str(go),), None, WHOLE, preferred_cluster=cluster, fallback="wait")
    try:
        until(lambda: holder.state is TaskState.RUNNING, 60)
        yield go
    finally:
        go.touch()
        assert holder.result(60) == "went"

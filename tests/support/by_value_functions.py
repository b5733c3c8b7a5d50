"""Functions that are pickled by value, and a context in which a cluster is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler import TaskState, UnifiedScheduler, submit_task_async
from tests.support.mac_cluster import until

WHOLE = {"CPU": 2}
"""All resources of one cluster."""


def all_idle(scheduler: UnifiedScheduler) -> None:
    """Wait until both clusters are reported as idle, since tags and preferences decide only then."""
    until(lambda: all((row["free"] or {}).get("CPU") == 2 for row in scheduler.list_clusters(refresh=True)), 60)


def where() -> Any:
    """A by-value function that returns its cluster."""

    def run() -> str:
        from ray_multicluster_scheduler import current

        return current().cluster

    return run


def noting() -> Any:
    """A by-value function that adds a line to a file."""

    def run(path: str, line: str) -> str:
        with open(path, "a") as file:
            file.write(f"{line}\n")
        return line

    return run


def waiting() -> Any:
    """A by-value function that ends when a file exists."""

    def run(path: str) -> str:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.02)
        return "went"

    return run


@contextmanager
def full(folder: Path, cluster: str = "mac") -> Iterator[Path]:
    """Keep all CPUs of that cluster in use until the yielded file exists; it is created at the end."""
    go = folder / f"go-{cluster}"
    holder = submit_task_async(waiting(), (str(go),), None, WHOLE, preferred_cluster=cluster, fallback="wait")
    try:
        until(lambda: holder.state is TaskState.RUNNING, 60)
        yield go
    finally:
        go.touch()
        assert holder.result(60) == "went"

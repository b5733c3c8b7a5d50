"""Load in short form, on real clusters: nothing is lost, nothing is mixed up, both clusters work.

How fast it is, is measured in `bench/`; here only correctness counts.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from ray_multicluster_scheduler import UnifiedScheduler, get
from tests.integration.conftest import fleet, ray_python, scheduler

__all__ = ["fleet", "ray_python", "scheduler"]

THREADS, EACH = 4, 150


@pytest.mark.slow  # test_load.py ramps further, on simulated clusters
def test_six_hundred_tasks_from_four_threads(scheduler: UnifiedScheduler, tmp_path: Path) -> None:
    def work(folder: str, number: int) -> tuple[int, str]:
        import os

        from ray_multicluster_scheduler import current

        with open(os.path.join(folder, f"{number}-{current().attempt}"), "x"):
            pass
        return number, current().cluster

    results: list[tuple[int, str]] = []
    lock = threading.Lock()

    def submit(offset: int) -> None:
        handles = [scheduler.submit_task_async(work, (str(tmp_path), offset + n)) for n in range(EACH)]
        values = get(handles, timeout=150)
        with lock:
            results.extend(values)

    threads = [threading.Thread(target=submit, args=(thread * EACH,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in results) == list(range(THREADS * EACH))
    assert len(list(tmp_path.iterdir())) == THREADS * EACH, "each ran exactly once"
    clusters = Counter(cluster for _, cluster in results)
    assert set(clusters) == {"linux", "mac"}

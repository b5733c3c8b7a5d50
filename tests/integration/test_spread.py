"""Work without declared resources, and short tasks, spread over equal real clusters."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from ray_multicluster_scheduler import (
    UnifiedScheduler,
    get,
    submit_job,
    submit_task,
    submit_task_async,
    wait_for_all_jobs,
)
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
from tests.support.by_value_functions import all_idle


def test_jobs_without_needs_spread_evenly(scheduler: UnifiedScheduler) -> None:
    all_idle(scheduler)
    ids = [submit_job("sleep 3") for _ in range(6)]
    wait_for_all_jobs(ids, check_interval=0.2, timeout=120)
    assert Counter(scheduler.job_info(one)["cluster"] for one in ids) == {"linux": 3, "mac": 3}
    assert any(row["undeclared"] for row in scheduler.explain(ids[-1])["decision"]["candidates"])


def test_short_tasks_spread(scheduler: UnifiedScheduler) -> None:
    for name in ("linux", "mac"):  # no agent has to be started meanwhile
        submit_task(int, preferred_cluster=name, fallback="wait")
    all_idle(scheduler)
    handles = [submit_task_async(time.sleep, (0.1,)) for _ in range(40)]
    get(handles, timeout=60)
    used = Counter(one.cluster for one in handles)
    assert min(used["linux"], used["mac"]) >= 8, used


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [2, 3])
def test_a_hundred_jobs_and_a_hundred_tasks_spread(count: int, ray_python: Path) -> None:
    names = [f"c{number}" for number in range(count)]
    settings = {"submission_interval_s": 0, "resource_threshold": 1}
    with (
        LocalFleet(
            *(LocalCluster(name, num_cpus=2, config={"max_running_jobs": 8}) for name in names),
            settings=settings,
            ray_python=ray_python,
        ) as fleet,
        UnifiedScheduler(fleet.config_path) as scheduler,
    ):
        ids = [scheduler.submit_job("true") for _ in range(100)]
        scheduler.wait_for_all_jobs(ids, check_interval=1, timeout=900)
        jobs = Counter(scheduler.job_info(one)["cluster"] for one in ids)
        handles = [scheduler.submit_task_async(time.sleep, (0.1,)) for _ in range(100)]
        get(handles, timeout=300)
        tasks = Counter(one.cluster for one in handles)
    for parts in (jobs, tasks):
        assert min(parts[name] for name in names) >= 0.6 * 100 / count, (jobs, tasks)

"""Work without declared resources, and short tasks, spread over two equal real clusters."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from ray_multicluster_scheduler import (
    UnifiedScheduler,
    get,
    submit_job,
    submit_task,
    submit_task_async,
    wait_for_all_jobs,
)
from tests.support.by_value_functions import all_idle

pytestmark = pytest.mark.usefixtures("scheduler")


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

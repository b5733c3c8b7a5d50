"""Two new items reach one cluster at least ``submission_interval_s`` apart, in virtual time over several clusters."""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch, SetTimer
from tests.unit.lifecycle.driver import Driver, job, ready, task

INTERVAL_S = 2.0


def wake_at(driver: Driver) -> float:
    return next(one.at for one in reversed(driver.issued(SetTimer, ever=True)) if one.key == timers.WAKE)


@pytest.mark.parametrize("seed", range(5))
def test_jobs_reach_each_cluster_that_far_apart_however_long_the_submissions_take(seed: int) -> None:
    """The first one of a program may need seconds for its packages; what counts is when the cluster has it."""
    chance = Random(seed)
    driver = ready(16, 16, 16, submission_interval_s=INTERVAL_S)
    began = driver.now
    for number in range(30):
        driver.submit(job(f"j{number}"))
    reached: dict[str, list[float]] = defaultdict(list)
    under_way: list[tuple[float, str, str]] = []
    seen = 0
    while sum(map(len, reached.values())) < 30:
        sent = driver.issued(Dispatch, ever=True)
        for one in sent[seen:]:
            heapq.heappush(under_way, (driver.now + chance.uniform(0.0, 1.9), one.task_id, one.cluster))
        seen = len(sent)
        woken = wake_at(driver) if timers.WAKE in driver.machine.timers else float("inf")
        if under_way and under_way[0][0] <= woken:
            driver.now, task_id, cluster = heapq.heappop(under_way)
            reached[cluster].append(driver.now)
            driver.accept(task_id)
        else:
            driver.fire(timers.WAKE, after=woken - driver.now)
    for times in reached.values():
        assert len(times) > 5
        assert min(after - before for before, after in pairwise(times)) >= INTERVAL_S - 1e-9
    assert max(map(max, reached.values())) < began + 30 / 3 * (INTERVAL_S + 2) + 10, "and not much later"


def test_an_acceptance_of_a_retry_restarts_nothing() -> None:
    driver = ready(8, submission_interval_s=INTERVAL_S, submission_interval_kinds=["task"], retry_backoff={"base_s": 0})
    driver.submit(task("retried"))
    driver.refuse("retried")
    driver.now += INTERVAL_S
    driver.fire("retry:retried")
    driver.accept("retried")
    assert driver.submit(task("next")).state is TaskState.DISPATCHING

"""Three scenarios of tests/unit/scenarios on real clusters, through the public verbs.

The typo in a cluster's name is among the mistakes of test_wrong_input.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import TaskState, UnifiedScheduler, get
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import config_of_mac, until


def by_value() -> Any:
    def run(path: str, what: str) -> str:
        """Writes a line, and returns its cluster when the test allows it."""
        import os
        import time

        from ray_multicluster_scheduler import current

        with open(f"{path}/lines", "a") as file:
            file.write(what + "\n")
        while not os.path.exists(f"{path}/go"):
            time.sleep(0.02)
        return current().cluster

    return run


def lines(folder: Path) -> list[str]:
    return (folder / "lines").read_text().splitlines() if (folder / "lines").exists() else []


@pytest.mark.parametrize(("full", "free"), [("linux", "mac"), ("mac", "linux")])
def test_one_free_cluster_among_full_ones_is_used_at_once(
    scheduler: UnifiedScheduler, tmp_path: Path, full: str, free: str
) -> None:
    there: dict[str, Any] = {"preferred_cluster": full, "fallback": "wait"}
    holders = [scheduler.submit_task_async(by_value(), (str(tmp_path), f"holder {n}"), **there) for n in range(2)]
    until(lambda: len(lines(tmp_path)) == 2)
    waits = scheduler.submit_task_async(len, ("it waits for the full one",), **there)
    mine = scheduler.submit_task_async(by_value(), (str(tmp_path), "mine"), preferred_cluster=full)
    until(lambda: "mine" in lines(tmp_path))
    assert mine.cluster == free
    assert waits.state is TaskState.QUEUED
    assert waits.explain()["code"] == "NO_CAPACITY"
    (tmp_path / "go").touch()
    assert get([*holders, mine], timeout=30) == [full, full, free]
    assert waits.result(30) == 25
    assert waits.cluster == full


def test_three_jobs_on_one_idle_cluster_all_run_in_order(fleet: LocalFleet, tmp_path: Path) -> None:
    """One at a time: the second starts when the first ends, and the third when the second does."""
    with UnifiedScheduler(config_of_mac(fleet, tmp_path, execution_mode="serial")) as scheduler:
        script = (
            f"echo $RMCS_TASK_ID begins >> {tmp_path}/lines; sleep 0.2; echo $RMCS_TASK_ID ends >> {tmp_path}/lines"
        )
        names = ["first", "second", "third"]
        jobs = [scheduler.submit_job_async(script, submission_id=name) for name in names]
        until(lambda: scheduler.explain("third")["code"] == "SERIAL")
        assert [job.result(60) for job in jobs] == ["SUCCEEDED"] * 3
    assert lines(tmp_path) == [f"{name} {what}" for name in names for what in ("begins", "ends")]


def test_two_equal_submissions_both_run(scheduler: UnifiedScheduler, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = by_value()
    handles = [scheduler.submit_task_async(run, (str(tmp_path), "the same")) for _ in range(2)]
    get(handles, timeout=30)
    assert handles[0].id != handles[1].id
    assert lines(tmp_path) == ["the same", "the same"]

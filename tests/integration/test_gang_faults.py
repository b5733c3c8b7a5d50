"""A gang survives a cut connection; after the death of its agent it is run again as a whole, never twice at a time."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler import TaskState, UnifiedScheduler, member
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.integration.test_cut_and_resume import line_to_mac, lines
from tests.support.gangs import living_groups
from tests.support.mac_cluster import agents_of_mac, config_of_mac, until


def noting() -> Any:
    """A by-value function that records its start and end, and runs for a given time."""

    def run(path: str, name: str, seconds: float) -> str:
        import time

        from ray_multicluster_scheduler import current

        with open(path, "a") as file:
            file.write(f"{name} {current().attempt} begins\n")
        time.sleep(seconds if current().attempt == 1 else 0.1)
        with open(path, "a") as file:
            file.write(f"{name} {current().attempt} ends\n")
        return name

    return run


def test_a_temporary_cut_of_the_connection(fleet: LocalFleet, tmp_path: Path) -> None:
    notes = tmp_path / "lines"
    with line_to_mac(fleet, tmp_path) as scheduler:
        handle = scheduler.submit_gang_async([member(noting(), str(notes), name, 3.0) for name in "ab"])
        until(lambda: handle.state is TaskState.RUNNING, 60)
        for _ in range(2):
            fleet.cut("mac")
            time.sleep(1.0)
            fleet.restore_network("mac")
            time.sleep(0.5)
        assert handle.result(60) == ["a", "b"]
        assert handle.attempt == 1, handle.explain()["history"]
    assert lines(notes) == {f"{name} 1 {what}": 1 for name in "ab" for what in ("begins", "ends")}


def test_a_killed_agent(fleet: LocalFleet, tmp_path: Path) -> None:
    notes = tmp_path / "lines"
    config = config_of_mac(fleet, tmp_path, lease_s=10, lost_after_s=20, heartbeat_s=1)
    with UnifiedScheduler(config) as scheduler:
        assert scheduler.submit_task(len, ("warm",)) == 4
        before = {process.pid for process in agents_of_mac(fleet)}
        handle = scheduler.submit_gang_async([member(noting(), str(notes), name, 600.0) for name in "ab"])
        until(lambda: handle.state is TaskState.RUNNING and len(lines(notes)) == 2, 60)
        newest = max(agents_of_mac(fleet), key=lambda process: process.create_time())
        assert newest.pid in before, "the one that the gang runs under"
        newest.send_signal(signal.SIGKILL)
        assert handle.result(120) == ["a", "b"]
        assert handle.attempt == 2
        assert scheduler.submit_task(living_groups(), (), None, {"CPU": 0}) == []
    assert lines(notes) == {
        **{f"{name} 1 begins": 1 for name in "ab"},
        **{f"{name} 2 {what}": 1 for name in "ab" for what in ("begins", "ends")},
    }

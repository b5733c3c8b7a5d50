"""A short form of `make links-under-fire`: network faults cost time, and violate no guarantee."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.fault_history import row, table
from tests.support.links_under_fire import LinksUnderFire
from tests.support.network_faults import some_faults


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_network_faults_violate_no_guarantee(fleet: LocalFleet, tmp_path: Path) -> None:
    faults = some_faults()
    judged = LinksUnderFire(fleet, tmp_path, job_every_s=None, heartbeat_s=1).run(faults)
    measured = table(row(fault_run, violations) for fault_run, violations in judged)
    assert [fault_run.fault for fault_run, _ in judged] == [fault.name for fault in faults]
    assert [violations for _, violations in judged] == [[]] * len(faults), measured
    (lost,) = [fault_run for fault_run, _ in judged if fault_run.fault == "half-open connections"]
    assert lost.noticed is not None, measured
    assert lost.noticed - lost.began < 15, "three heartbeats, and a busy machine"

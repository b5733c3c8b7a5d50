"""A short form of `make links-under-fire`: a line in trouble costs time, and no promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.fire_history import row, table
from tests.support.fire_troubles import some_troubles
from tests.support.links_under_fire import LinksUnderFire


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_line_in_trouble_costs_time_and_no_promise(fleet: LocalFleet, tmp_path: Path) -> None:
    troubles = some_troubles()
    judged = LinksUnderFire(fleet, tmp_path, job_every_s=None, heartbeat_s=1).run(troubles)
    told = table(row(ordeal, promises) for ordeal, promises in judged)
    assert [ordeal.trouble for ordeal, _ in judged] == [trouble.name for trouble in troubles]
    assert [promises for _, promises in judged] == [[]] * len(troubles), told
    (lost,) = [ordeal for ordeal, _ in judged if ordeal.trouble == "half-open connections"]
    assert lost.noticed is not None, told
    assert lost.noticed - lost.began < 15, "three heartbeats, and a busy machine"

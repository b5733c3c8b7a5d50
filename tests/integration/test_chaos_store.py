"""A few rounds of `make chaos-store`: repeated kills of a service violate no guarantee."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.chaos_store import ChaosStore, summary


@pytest.mark.timeout(600)
def test_a_killed_service_violates_no_guarantee(fleet: LocalFleet, tmp_path: Path) -> None:
    chaos = ChaosStore(Path(fleet.config_path), tmp_path, seed=7)
    assert chaos.run(2) == []
    assert chaos.kills.total() == 2
    assert {note.item for note in chaos.history.notes} == chaos.history.acknowledged, summary(chaos)

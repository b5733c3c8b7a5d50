"""A few rounds of `make chaos-store`: a service that is killed again and again keeps its word."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.chaos_store import ChaosStore, summary


@pytest.mark.timeout(600)
def test_a_service_that_is_killed_keeps_its_word(fleet: LocalFleet, tmp_path: Path) -> None:
    chaos = ChaosStore(Path(fleet.config_path), tmp_path, seed=7)
    assert chaos.run(2) == []
    assert chaos.kills.total() == 2
    assert {note.item for note in chaos.history.notes} == chaos.history.acknowledged, summary(chaos)

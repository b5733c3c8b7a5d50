"""The checker can fail: one planted bug per guarantee, caught by that guarantee and by no other."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.simulation.checker import PROPERTIES, judge
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun
from tests.unit.guarantees.planted_bugs import PLANTED, PlantedBug


def by_name(planted: PlantedBug) -> str:
    return f"{planted.property}: {planted.what}"


def test_every_property_has_a_planted_bug() -> None:
    assert {planted.property for planted in PLANTED} == set(PROPERTIES)


@pytest.mark.parametrize("planted", PLANTED, ids=by_name)
def test_the_run_is_good_without_the_bug(planted: PlantedBug) -> None:
    outcome = FaultyRun(planted.scenario).play()
    assert outcome.error is None
    assert [str(one) for one in judge(outcome.history)] == []


@pytest.mark.parametrize("planted", PLANTED, ids=by_name)
def test_a_planted_bug_is_caught_by_its_property_only(planted: PlantedBug) -> None:
    with planted.bug():
        outcome = FaultyRun(planted.scenario, planted.make, planted.executor).play()
    assert outcome.error is None
    caught = {one.property for one in judge(outcome.history)}
    assert caught == {planted.property}, [str(one) for one in judge(outcome.history)][:5]

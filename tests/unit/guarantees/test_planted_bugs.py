"""The judge can fail: one planted bug per guarantee, caught by that guarantee and by no other."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.simulation.checker import PROPERTIES, judge
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun
from tests.unit.guarantees.planted import PLANTED, Planted


def by_name(planted: Planted) -> str:
    return f"{planted.property}: {planted.what}"


def test_there_is_one_for_each() -> None:
    assert {planted.property for planted in PLANTED} == set(PROPERTIES)


@pytest.mark.parametrize("planted", PLANTED, ids=by_name)
def test_the_run_is_good_without_the_bug(planted: Planted) -> None:
    outcome = FaultyRun(planted.play).play()
    assert outcome.error is None
    assert [str(one) for one in judge(outcome.history)] == []


@pytest.mark.parametrize("planted", PLANTED, ids=by_name)
def test_a_planted_bug_is_caught_by_its_judge_and_no_other(planted: Planted) -> None:
    with planted.bug():
        outcome = FaultyRun(planted.play, planted.make, planted.hands).play()
    assert outcome.error is None
    caught = {one.property for one in judge(outcome.history)}
    assert caught == {planted.property}, [str(one) for one in judge(outcome.history)][:5]

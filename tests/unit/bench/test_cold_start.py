"""bench.cold_start: the steps of a program's start add up, and a step that did not take place is left out."""

from __future__ import annotations

import pytest

from bench.cold_start import medians, steps

TIMES = {"submitted": 11.0, "agent": 13.0, "worker": 14.0, "ran": 15.5, "first_result": 15.6}


def test_steps_of_a_start_with_a_new_agent() -> None:
    found = steps(TIMES, began=10.0, posted=11.2)
    assert list(found) == ["total", "program", "placed", "ray", "agent", "worker", "result"]
    assert found["total"] == pytest.approx(5.6)
    assert sum(found.values()) == pytest.approx(2 * found["total"])


def test_without_a_new_agent_there_are_no_steps_of_one() -> None:
    found = steps({**TIMES, "agent": 1.0, "worker": 2.0}, began=10.0, posted=None)
    assert list(found) == ["total", "program", "worker", "result"]
    assert sum(found.values()) == pytest.approx(2 * found["total"])


def test_medians_of_steps_that_some_rounds_lack() -> None:
    assert medians([{"total": 1.0}, {"total": 3.0, "ray": 2.0}]) == {"total": 2.0, "ray": 2.0}

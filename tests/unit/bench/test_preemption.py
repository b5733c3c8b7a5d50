"""The benchmark of preemption runs, and reports its figures."""

from __future__ import annotations

import json

import pytest

from bench import preemption


@pytest.mark.parametrize("as_json", [False, True])
def test_it_reports_time_and_cost(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--items", "2000", "--rounds", "2", "--cases", "200"]
    assert preemption.main([*options, "--json"] if as_json else options) == 0
    text = capsys.readouterr().out
    if as_json:
        figures = json.loads(text)
        assert set(figures["time_ms"]) == set(preemption.NEWCOMERS)
        assert figures["extra_lost_work"]["without_higher_priorities"]["mean"] >= 0
    else:
        assert "by reclaim, eight victims" in text
        assert "p99" in text

"""The benchmark of the simulator, in short form."""

from __future__ import annotations

import json

import pytest

from bench.simulation import main


def test_a_small_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--items", "300", "--clusters", "3"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["succeeded"], first["clusters"]) == (300, 3)
    assert first["cpu_s"] > 0
    assert main(["--json", "--items", "300", "--clusters", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == first["digest"]


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--items", "50", "--clusters", "2"]) == 0
    assert "items_per_cpu_s: " in capsys.readouterr().out

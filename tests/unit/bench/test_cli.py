"""bench.cli: medians of real processes, and a command that fails is no figure."""

from __future__ import annotations

import os
import sys

import pytest

from bench.cli import measure


def test_time_and_cost_of_a_process() -> None:
    figures = measure([sys.executable, "-c", "sum(range(10_000))"], os.environ, 2)
    assert figures["cpu_ms"] > 0
    assert figures["wall_ms"] > 0


def test_one_that_fails() -> None:
    with pytest.raises(RuntimeError, match="ended with 3"):
        measure([sys.executable, "-c", "raise SystemExit(3)"], os.environ, 1)

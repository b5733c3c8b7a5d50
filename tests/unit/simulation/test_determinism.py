"""The same seed gives the same bytes, and recording does not change a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ray_multicluster_scheduler.simulation import (
    OthersLoad,
    PlannedFault,
    SimulatedFleet,
    Synthetic,
    compare,
    simulate,
)
from ray_multicluster_scheduler.simulation.checker import judge
from ray_multicluster_scheduler.simulation.history import HistoryLine
from ray_multicluster_scheduler.simulation.replay import replay
from tests.unit.simulation.simulated_runs import exact, fleet

ROOT = Path(__file__).resolve().parents[3]
RECIPE = Synthetic.parse(
    "items=400 over=20min run=pareto:5,1.3,300 wide=0.2:8 owners=ann:2,bob,eve priorities=0:9,5 kinds=task:8,job,gang "
    "members=2 tags=arm64:0.3 require=x86:0.1 fails=0.05"
)


def rough_fleet() -> SimulatedFleet:
    """A fleet with every kind of random behaviour."""
    return fleet(
        exact("a", "4x{CPU:8}", tags=("x86",), crashes_per_hour=5.0, snapshot_loss=0.2, latency_s=0.02),
        exact("b", "2x{CPU:16}@1.7", tags=("arm64",), others=OthersLoad(0.3, every_s=60.0), snapshot_every_s=5.0),
        exact("c", "8x{CPU:8}@0.5", snapshot_delay_s=2.0),
        faults=(PlannedFault(100, "a", "cut", 90), PlannedFault(400, "b", "dies", 60)),
        prefetch_ms=50,
        retries=1,
    )


def text(seed: int) -> str:
    return simulate(rough_fleet(), RECIPE.generate(seed), seed=seed).to_json(series=True)


def test_same_seed_same_bytes() -> None:
    assert text(1) == text(1)


def test_another_seed_is_another_run() -> None:
    assert text(1) != text(2)


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_another_process_with_another_hash_seed_gives_the_same_bytes(hash_seed: str) -> None:
    code = "from tests.unit.simulation.test_determinism import text; print(text(1))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == text(1) + "\n"


def test_recording_does_not_change_the_run() -> None:
    lines: list[HistoryLine] = []
    recorded = simulate(rough_fleet(), RECIPE.generate(1), seed=1, observe=lines.append)
    assert recorded.to_json(series=True) == text(1)
    assert len(lines) > 4 * 400


def test_the_checker_finds_no_violation_and_a_replay_gives_the_same_answers() -> None:
    lines: list[HistoryLine] = []
    simulate(rough_fleet(), RECIPE.generate(1), seed=1, observe=lines.append)
    assert [str(found) for found in judge(lines)] == []
    again = replay(lines)
    assert (again.error, again.differs_at) == (None, None)


def test_compared_runs_are_independent() -> None:
    work = RECIPE.generate(1)
    both = compare({"one": rough_fleet(), "two": rough_fleet()}, list(work), seed=1).results
    assert both["one"].to_json() == both["two"].to_json() == simulate(rough_fleet(), work, seed=1).to_json()


def test_all_submitted_items_are_counted() -> None:
    items = simulate(rough_fleet(), RECIPE.generate(1), seed=1).figures["items"]
    assert items["submitted"] == 400 == items["succeeded"] + items["failed"] + items["cancelled"] + items["unfinished"]
    assert items["unfinished"] == 0


def test_short_items_are_sent_ahead_and_recalled_for_more_urgent_ones() -> None:
    quick = Synthetic.parse(
        "items=3000 over=10s arrivals=bursts:5 run=constant:5ms sizes=1 functions=1 priorities=0:99,5:1"
    )
    result = simulate(fleet(exact("a", "{CPU:4}", latency_s=0.01), prefetch_ms=50), quick.generate(1))
    ahead = result.figures["sent_ahead"]
    assert ahead["attempts"] > 1000
    assert 0 < ahead["recalled"] < ahead["attempts"]
    assert result.succeeded == 3000
    plain = simulate(fleet(exact("a", "{CPU:4}", latency_s=0.01), prefetch_ms=0), quick.generate(1))
    assert result.makespan_s < plain.makespan_s


def test_samples_are_bounded() -> None:
    """One at a time, the run takes a hundred times as long as it could."""
    where = fleet(exact("a", "{CPU:100}"), execution_mode="serial")
    slow = simulate(where, Synthetic.parse("items=50 over=1s run=constant:20 sizes=1").generate(0))
    assert slow.makespan_s == pytest.approx(1000, abs=1)
    assert 400 < len(slow.series.times) <= 1001
    assert slow.series.times[-1] == pytest.approx(1000, abs=1)
    assert slow.series.most_queued() > 40

"""A failing run is shrunk, written and replayed: the same events, the same answers, the same violations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.simulation.checker import judge
from ray_multicluster_scheduler.simulation.faulty.campaign import (
    RAISED,
    problems,
    run_seed,
    run_seeds,
    shrink,
    write_smallest,
)
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun, Outcome
from ray_multicluster_scheduler.simulation.faulty.scenario import Scenario, generate_scenario
from ray_multicluster_scheduler.simulation.history import EventHandled, read_history, write_history
from ray_multicluster_scheduler.simulation.replay import replay
from tests.unit.guarantees.planted_bugs import ReusesFences

FENCES = "fences_only_grow"


class Raises(SchedulerMachine):
    def handle(self, event: events.Event, now: float) -> list[out.Instruction]:
        if isinstance(event, events.CancelRequested):
            raise RuntimeError("no")
        return super().handle(event, now)


def play_with_reused_fences(scenario: Scenario) -> Outcome:
    return FaultyRun(scenario, ReusesFences).play()


def test_a_scenario_is_shrunk_to_what_its_failure_needs() -> None:
    """Only two of many actions are needed to make it fail."""
    scenario = generate_scenario(1)
    needed = {scenario.actions[10], scenario.actions[70]}
    tried: list[int] = []

    def fails(some: Scenario) -> bool:
        tried.append(len(some.actions))
        return needed <= set(some.actions)

    small = shrink(scenario, fails)
    assert set(small.actions) == needed
    assert small.fault_rate == 0
    assert len(tried) < 250


def test_the_budget_is_kept() -> None:
    tried: list[Scenario] = []

    def fails(some: Scenario) -> bool:
        tried.append(some)
        return some.fault_rate > 0 and len(some.actions) % 2 == len(generate_scenario(1).actions) % 2

    shrink(generate_scenario(1), fails, budget=10)
    assert len(tried) <= 12  # and one run without message faults, one with only the needed items


def test_a_failing_seed_becomes_a_small_file_that_fails_as_well(tmp_path: Path) -> None:
    path, small = write_smallest(generate_scenario(0), FENCES, tmp_path, play_with_reused_fences)
    whole = len(generate_scenario(0).actions)
    assert len(small.actions) < whole / 10
    recorded = list(read_history(path))
    assert FENCES in {one.property for one in judge(recorded)}
    again = replay(recorded, ReusesFences)
    assert (again.differs_at, again.error) == (None, None)
    assert again.history == recorded


def test_the_correct_machine_passes_a_recorded_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = write_smallest(generate_scenario(0), FENCES, tmp_path, play_with_reused_fences)
    assert main(["replay", str(path)]) == 0
    output = capsys.readouterr().out
    assert "← Submitted(" in output
    assert "DISPATCHING (attempt 2" in output
    assert "answers not as recorded, from line" in output
    assert "0 violations" in output
    assert "SetTimer" not in output
    assert main(["replay", str(path), "--all"]) == 0
    assert "SetTimer" in capsys.readouterr().out


def test_replay_prints_violations_and_ends_with_100(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = FaultyRun(replace(generate_scenario(4), actions=generate_scenario(4).actions[:20])).play().history
    last = next(number for number, line in enumerate(history) if isinstance(line, EventHandled) and number > 40)
    write_history(tmp_path / "cut.jsonl", history[:last])
    assert main(["replay", "-q", str(tmp_path / "cut.jsonl")]) == exit_codes.FAILED
    output = capsys.readouterr().out
    assert "every_accepted_task_reaches_exactly_one_terminal_state: line" in output
    assert "←" not in output
    assert "answers as recorded" in output


def test_what_cannot_be_replayed_is_refused_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = FaultyRun(generate_scenario(4)).play().history
    with pytest.raises(ConfigurationError, match="does not begin with its set-up"):
        replay(history[1:])
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl cannot be read" in capsys.readouterr().err
    (tmp_path / "trace.csv").write_text("id,kind\nt1,task\n")
    assert main(["replay", str(tmp_path / "trace.csv")]) == 2
    output = capsys.readouterr().err
    assert "trace.csv is not a recorded run" in output
    assert "What to do: give a file that `rmcs simulate --record FILE` or `make sim-test` has written" in output


def test_a_machine_that_raises_ends_run_and_replay_there() -> None:
    scenario = generate_scenario(0)
    outcome = FaultyRun(scenario, Raises).play()
    assert [name for name, _ in problems(outcome)] == [RAISED]
    assert repr(replay(FaultyRun(scenario).play().history, Raises).error) == "RuntimeError('no')"


def test_a_campaign_counts_what_it_did() -> None:
    one, two = run_seed(0), run_seed(1)
    *_, total = run_seeds(0, 2, jobs=1)
    assert (total.runs, total.steps) == (2, one.steps + two.steps)
    assert total.faults == one.faults + two.faults
    assert total.fewest_faults == min(one.faults, two.faults)
    assert total.failed == {}
    assert run_seed(0, 60, "plain").steps != run_seed(0, 60, "mixed").steps

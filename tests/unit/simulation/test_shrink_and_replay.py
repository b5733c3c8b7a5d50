"""A failing run is made small, written, and replayed: the same events, the same answers, the same verdict."""

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
    one_seed,
    problems,
    run_seeds,
    shrink,
    write_smallest,
)
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun, Outcome
from ray_multicluster_scheduler.simulation.faulty.scenario import Script, make_script
from ray_multicluster_scheduler.simulation.history import EventHandled, read_history, write_history
from ray_multicluster_scheduler.simulation.replay import replay
from tests.unit.guarantees.planted import UsesOldFences

FENCES = "fences_only_grow"


class Raises(SchedulerMachine):
    def handle(self, event: events.Event, now: float) -> list[out.Instruction]:
        if isinstance(event, events.CancelRequested):
            raise RuntimeError("no")
        return super().handle(event, now)


def wrong(script: Script) -> Outcome:
    return FaultyRun(script, UsesOldFences).play()


def test_a_script_is_cut_down_to_what_its_failure_needs() -> None:
    """Two deeds together make it fail, among many."""
    script = make_script(1)
    needed = {script.deeds[10], script.deeds[70]}
    tried: list[int] = []

    def fails(some: Script) -> bool:
        tried.append(len(some.deeds))
        return needed <= set(some.deeds)

    small = shrink(script, fails)
    assert set(small.deeds) == needed
    assert small.rate == 0
    assert len(tried) < 250


def test_the_budget_is_kept() -> None:
    tried: list[Script] = []

    def fails(some: Script) -> bool:
        tried.append(some)
        return some.rate > 0 and len(some.deeds) % 2 == len(make_script(1).deeds) % 2

    shrink(make_script(1), fails, budget=10)
    assert len(tried) <= 12  # and a look at the calm script, and one at the bare one


def test_a_failing_seed_becomes_a_small_file_that_fails_as_well(tmp_path: Path) -> None:
    path, small = write_smallest(make_script(0), FENCES, tmp_path, wrong)
    whole = len(make_script(0).deeds)
    assert len(small.deeds) < whole / 10
    recorded = list(read_history(path))
    assert FENCES in {one.property for one in judge(recorded)}
    again = replay(recorded, UsesOldFences)
    assert (again.differs_at, again.error) == (None, None)
    assert again.history == recorded


def test_the_right_machine_answers_a_recorded_failure_rightly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = write_smallest(make_script(0), FENCES, tmp_path, wrong)
    assert main(["replay", str(path)]) == 0
    said = capsys.readouterr().out
    assert "← Submitted(" in said
    assert "DISPATCHING (attempt 2" in said
    assert "answers not as recorded, from line" in said
    assert "0 violations" in said
    assert "SetTimer" not in said
    assert main(["replay", str(path), "--all"]) == 0
    assert "SetTimer" in capsys.readouterr().out


def test_replay_says_what_the_judges_say_and_ends_with_100(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = FaultyRun(replace(make_script(4), deeds=make_script(4).deeds[:20])).play().history
    last = next(number for number, line in enumerate(history) if isinstance(line, EventHandled) and number > 40)
    write_history(tmp_path / "cut.jsonl", history[:last])
    assert main(["replay", "-q", str(tmp_path / "cut.jsonl")]) == exit_codes.FAILED
    said = capsys.readouterr().out
    assert "every_accepted_task_reaches_exactly_one_terminal_state: line" in said
    assert "←" not in said
    assert "answers as recorded" in said


def test_what_cannot_be_replayed_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = FaultyRun(make_script(4)).play().history
    with pytest.raises(ConfigurationError, match="does not begin with its set-up"):
        replay(history[1:])
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl cannot be read" in capsys.readouterr().err
    (tmp_path / "trace.csv").write_text("id,kind\nt1,task\n")
    assert main(["replay", str(tmp_path / "trace.csv")]) == 2
    said = capsys.readouterr().err
    assert "trace.csv is not a recorded run" in said
    assert "What to do: give a file that `rmcs simulate --record FILE` or `make sim-test` has written" in said


def test_a_machine_that_raises_ends_run_and_replay_there() -> None:
    script = make_script(0)
    outcome = FaultyRun(script, Raises).play()
    assert [name for name, _ in problems(outcome)] == [RAISED]
    assert repr(replay(FaultyRun(script).play().history, Raises).error) == "RuntimeError('no')"


def test_a_campaign_counts_what_it_did() -> None:
    one, two = one_seed(0), one_seed(1)
    *_, total = run_seeds(0, 2, jobs=1)
    assert (total.runs, total.steps) == (2, one.steps + two.steps)
    assert total.faults == one.faults + two.faults
    assert total.fewest_faults == min(one.faults, two.faults)
    assert total.failed == {}
    assert one_seed(0, 60, "plain").steps != one_seed(0, 60, "mixed").steps

"""Each guarantee of docs/guarantees.md, by a test of its name, over faulty runs (more of them: `make sim-test`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from ray_multicluster_scheduler.scheduler.lifecycle.events import Submitted
from ray_multicluster_scheduler.simulation.checker import PROPERTIES, Violation, judge
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun
from ray_multicluster_scheduler.simulation.faulty.scenario import STYLES, generate_scenario
from ray_multicluster_scheduler.simulation.history import (
    AttemptBegan,
    ControlPlaneCrashed,
    EventHandled,
    FaultInjected,
    History,
    RunSetup,
)

SEEDS, MORE_SEEDS = range(24), range(24, 160)
POOL_SEEDS = range(1, 9)
"""Of runs in which items belong to pools; they are found under the negative seed."""
DOCUMENT = Path(__file__).parents[3] / "docs" / "guarantees.md"


@cache
def runs() -> dict[int, tuple[History, list[Violation]]]:
    """Play all runs once."""
    return {seed: judged(seed) for seed in SEEDS} | {-seed: judged(seed, "pools") for seed in POOL_SEEDS}


def judged(seed: int, style: str | None = None) -> tuple[History, list[Violation]]:
    outcome = FaultyRun(generate_scenario(seed, style=STYLES[style] if style else None)).play()
    assert outcome.error is None, f"seed {seed}: {outcome.error!r}"
    return outcome.history, judge(outcome.history)


def broken(name: str) -> list[str]:
    return [f"seed {seed}: {one}" for seed, (_, found) in runs().items() for one in found if one.property == name]


def test_every_accepted_task_reaches_exactly_one_terminal_state() -> None:
    assert broken("every_accepted_task_reaches_exactly_one_terminal_state") == []


def test_at_most_one_live_attempt() -> None:
    assert broken("at_most_one_live_attempt") == []


def test_fences_only_grow() -> None:
    assert broken("fences_only_grow") == []


def test_reservations_never_exceed_capacity() -> None:
    assert broken("reservations_never_exceed_capacity") == []


def test_rules_never_broken() -> None:
    assert broken("rules_never_broken") == []


def test_quota_never_exceeded() -> None:
    assert broken("quota_never_exceeded") == []


def test_only_preemptible_items_give_way() -> None:
    assert broken("only_preemptible_items_give_way") == []


def test_nothing_is_stopped_for_nobody() -> None:
    assert broken("nothing_is_stopped_for_nobody") == []


def test_freed_room_is_kept() -> None:
    assert broken("freed_room_is_kept") == []


def test_a_preemption_uses_no_retry() -> None:
    assert broken("a_preemption_uses_no_retry") == []


def test_saved_state_arrives() -> None:
    assert broken("saved_state_arrives") == []


def test_order() -> None:
    assert broken("order") == []


def test_no_starvation() -> None:
    assert broken("no_starvation") == []


def test_every_waiting_task_has_a_true_reason() -> None:
    assert broken("every_waiting_task_has_a_true_reason") == []


def test_idle_fleet_starts_at_once() -> None:
    assert broken("idle_fleet_starts_at_once") == []


def test_rebuild_equals_live() -> None:
    assert broken("rebuild_equals_live") == []


def test_nothing_is_left() -> None:
    assert broken("nothing_is_left") == []


def test_cancelled_work_does_not_go_on() -> None:
    assert broken("cancelled_work_does_not_go_on") == []


def test_user_errors_never_open_a_breaker() -> None:
    assert broken("user_errors_never_open_a_breaker") == []


@pytest.mark.parametrize("first", range(1, 101, 10))
def test_every_guarantee_holds_in_a_storm_of_preemptions(first: int) -> None:
    assert [f"seed {seed}: {one}" for seed in range(first, first + 10) for one in judged(seed, "storm")[1]] == []


@pytest.mark.slow
def test_more_runs_keep_every_guarantee() -> None:
    for style in (None, "pools", "storm"):
        assert [f"seed {seed} {style}: {one}" for seed in MORE_SEEDS for one in judged(seed, style)[1]] == []


def test_every_guarantee_is_documented_with_its_sentence_and_has_its_test() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert rows == {name: kind.sentence for name, kind in PROPERTIES.items()}
    assert {f"test_{name}" for name in PROPERTIES} <= set(globals())


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_is_rich_enough(seed: int) -> None:
    history, _ = runs()[seed]
    setup = history[0]
    assert isinstance(setup, RunSetup)
    assert len(setup.clusters) >= 2
    fed = [line.event for line in history if isinstance(line, EventHandled)]
    items = {event.task.id for event in fed if isinstance(event, Submitted)}
    assert len(items) >= 50
    assert sum(isinstance(line, FaultInjected) for line in history) >= 5
    assert any(isinstance(line, ControlPlaneCrashed) for line in history)
    assert any(isinstance(line, AttemptBegan) for line in history)


def test_the_same_seed_gives_the_same_run() -> None:
    assert FaultyRun(generate_scenario(3)).play().history == runs()[3][0]

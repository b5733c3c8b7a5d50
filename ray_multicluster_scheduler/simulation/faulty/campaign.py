"""Run many seeds on all cores; shrink each failing run and write it to a file that `rmcs replay` can read."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ray_multicluster_scheduler.simulation.checker import judge
from ray_multicluster_scheduler.simulation.faulty.run import FaultyRun, Outcome
from ray_multicluster_scheduler.simulation.faulty.scenario import ITEMS, STYLES, Action, Scenario, generate_scenario
from ray_multicluster_scheduler.simulation.history import write_history

RAISED = "the_machine_raises_nothing"
"""The property that is broken when the machine itself raises."""
SHRINK_BUDGET = 400
"""Runs that shrinking may cost."""

Player = Callable[[Scenario], Outcome]


@dataclass(slots=True)
class Tally:
    """The sums of a campaign. ``failed`` has the properties that each failing seed broke."""

    runs: int = 0
    steps: int = 0
    faults: int = 0
    fewest_faults: int | None = None
    broken: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.steps += other.steps
        self.faults += other.faults
        least = [one for one in (self.fewest_faults, other.fewest_faults) if one is not None]
        self.fewest_faults = min(least, default=None)
        self.broken.update(other.broken)
        self.failed.update(other.failed)


def play(scenario: Scenario) -> Outcome:
    return FaultyRun(scenario).play()


def problems(outcome: Outcome) -> list[tuple[str, str]]:
    """Each broken property, with the first sentence about it."""
    if outcome.error is not None:  # the history ends early, so that other properties are broken as well
        return [(RAISED, repr(outcome.error))]
    found: dict[str, str] = {}
    for violation in judge(outcome.history):
        found.setdefault(violation.property, str(violation))
    return list(found.items())


def run_seed(seed: int, items: int = ITEMS, style: str | None = None) -> Tally:
    """Run and check one seed. Without a style, the seed chooses one."""
    outcome = play(generate_scenario(seed, items, STYLES[style] if style else None))
    names = [name for name, _ in problems(outcome)]
    failed = {seed: names} if names else {}
    return Tally(1, outcome.steps, outcome.faults, outcome.faults, Counter(names), failed)


def run_seeds(
    first: int, seeds: int, jobs: int | None = None, items: int = ITEMS, style: str | None = None
) -> Iterator[Tally]:
    """Run this many seeds; yields the tally so far after each run."""
    total = Tally()
    run = partial(run_seed, items=items, style=style)
    jobs = jobs or os.cpu_count() or 1
    numbers = range(first, first + seeds)
    if jobs == 1:
        for seed in numbers:
            total.add(run(seed))
            yield total
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for tally in pool.imap_unordered(run, numbers, chunksize=8):
            total.add(tally)
            yield total


def write_smallest(scenario: Scenario, name: str, folder: Path, player: Player = play) -> tuple[Path, Scenario]:
    """Shrink a failing run as long as it breaks this property, and write its history."""

    def breaks(scenario: Scenario) -> bool:
        return name in dict(problems(player(scenario)))

    small = shrink(scenario, breaks)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{scenario.seed}-{name}.jsonl"
    write_history(path, player(small).history)
    return path, small


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], budget: int = SHRINK_BUDGET) -> Scenario:
    """Delta debugging: a smaller scenario that still fails.

    Random message faults are removed first, then large pieces of the actions, then smaller ones. If the budget
    suffices, no single action of the result can be left out.
    """
    left = budget
    without_message_faults = replace(scenario, fault_rate=0.0)
    if scenario.fault_rate and fails(without_message_faults):
        scenario, left = without_message_faults, left - 1
    actions = list(scenario.actions)
    size = max(1, len(actions) // 2)
    while size >= 1 and left > 0:
        shorter, left = _without_pieces(scenario, actions, size, fails, left)
        size = size if len(shorter) < len(actions) and size == 1 else size // 2
        actions = shorter
    needed = {action.arguments[0] for action in actions if action.method == "submit"}
    items = {task_id: item for task_id, item in scenario.items.items() if task_id in needed}
    bare = replace(scenario, actions=tuple(actions), items=items)
    return bare if fails(bare) else replace(scenario, actions=tuple(actions))


def _without_pieces(
    scenario: Scenario, actions: list[Action], size: int, fails: Callable[[Scenario], bool], left: int
) -> tuple[list[Action], int]:
    """Try to leave out each piece of this size, from the end on."""
    start = len(actions)
    while start > 0 and left > 0:
        start = max(0, start - size)
        fewer = actions[:start] + actions[start + size :]
        left -= 1
        if fails(replace(scenario, actions=tuple(fewer))):
            actions = fewer
    return actions, left

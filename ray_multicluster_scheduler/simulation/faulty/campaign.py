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
from ray_multicluster_scheduler.simulation.faulty.scenario import ITEMS, STYLES, Deed, Script, make_script
from ray_multicluster_scheduler.simulation.history import write_history

BUDGET = 400
"""Runs that may be spent on it."""


def shrink(script: Script, fails: Callable[[Script], bool], budget: int = BUDGET) -> Script:
    """A part of the script that still fails; no single piece of its last size can be left out, if the budget sufficed.

    Large pieces are tried first (delta debugging), and messages that suffer by chance before all else.
    """
    left = budget
    calm = replace(script, rate=0.0)
    if script.rate and fails(calm):
        script, left = calm, left - 1
    deeds = list(script.deeds)
    size = max(1, len(deeds) // 2)
    while size >= 1 and left > 0:
        shorter, left = _without_pieces(script, deeds, size, fails, left)
        size = size if len(shorter) < len(deeds) and size == 1 else size // 2
        deeds = shorter
    needed = {deed.given[0] for deed in deeds if deed.what == "submit"}
    items = {task_id: item for task_id, item in script.items.items() if task_id in needed}
    bare = replace(script, deeds=tuple(deeds), items=items)
    return bare if fails(bare) else replace(script, deeds=tuple(deeds))


def _without_pieces(
    script: Script, deeds: list[Deed], size: int, fails: Callable[[Script], bool], left: int
) -> tuple[list[Deed], int]:
    """Try to leave out each piece of this size, from the end on."""
    start = len(deeds)
    while start > 0 and left > 0:
        start = max(0, start - size)
        fewer = deeds[:start] + deeds[start + size :]
        left -= 1
        if fails(replace(script, deeds=tuple(fewer))):
            deeds = fewer
    return deeds, left


RAISED = "the_machine_raises_nothing"
"""What fails when the machine itself does."""

Play = Callable[[Script], Outcome]


@dataclass(slots=True)
class Tally:
    """What a campaign came to. ``failed`` has the properties that each failing seed broke."""

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


def play(script: Script) -> Outcome:
    return FaultyRun(script).play()


def problems(outcome: Outcome) -> list[tuple[str, str]]:
    """Each broken property, with the first sentence about it."""
    found = {} if outcome.error is None else {RAISED: repr(outcome.error)}
    if outcome.error is None:  # else much is unfinished, and that is no news
        for violation in judge(outcome.history):
            found.setdefault(violation.property, str(violation))
    return list(found.items())


def one_seed(seed: int, items: int = ITEMS, style: str | None = None) -> Tally:
    """One run, judged. Without a style, all of them have their turn."""
    outcome = play(make_script(seed, items, STYLES[style] if style else None))
    names = [name for name, _ in problems(outcome)]
    failed = {seed: names} if names else {}
    return Tally(1, outcome.steps, outcome.faults, outcome.faults, Counter(names), failed)


def run_seeds(
    first: int, seeds: int, jobs: int | None = None, items: int = ITEMS, style: str | None = None
) -> Iterator[Tally]:
    """The tally so far, after each run."""
    total = Tally()
    judged = partial(one_seed, items=items, style=style)
    jobs = jobs or os.cpu_count() or 1
    numbers = range(first, first + seeds)
    if jobs == 1:
        for seed in numbers:
            total.add(judged(seed))
            yield total
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for one in pool.imap_unordered(judged, numbers, chunksize=8):
            total.add(one)
            yield total


def write_smallest(script: Script, name: str, folder: Path, player: Play = play) -> tuple[Path, Script]:
    """Shrink a failing run as long as this property breaks, and write its history."""

    def breaks(script: Script) -> bool:
        return name in dict(problems(player(script)))

    small = shrink(script, breaks)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{script.seed}-{name}.jsonl"
    write_history(path, player(small).history)
    return path, small

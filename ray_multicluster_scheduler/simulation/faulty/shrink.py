"""Shrink: leave out of a script whatever its failure does not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ray_multicluster_scheduler.simulation.faulty.script import Deed, Script

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

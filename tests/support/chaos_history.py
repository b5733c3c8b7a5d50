"""Check the recorded history of a chaos round: files that the work wrote, answers to the program, and the store."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


@dataclass(frozen=True)
class Note:
    """A line that work wrote about itself."""

    item: str
    attempt: int
    fence: int
    what: str
    at: float


@dataclass
class History:
    """``acknowledged`` are the accepted ids, ``answers`` the states that their program received, ``stored`` the last
    state and attempt of each in the store, and ``notes`` the lines that the work wrote."""

    acknowledged: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)
    stored: dict[str, tuple[str, int]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def read_notes(path: Path) -> list[Note]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Note(**json.loads(line)) for line in lines]


def violations(history: History) -> list[str]:
    """The violated guarantees, as sentences."""
    by_item: dict[str, list[Note]] = {}
    for note in sorted(history.notes, key=lambda one: one.at):
        by_item.setdefault(note.item, []).append(note)
    broken: list[str] = []
    for item in sorted(history.acknowledged):
        broken += _of_one(item, by_item.get(item, []), history.stored.get(item), history.answers.get(item))
    for item in sorted(set(by_item) - set(history.stored)):
        broken.append(f"{item} ran and is not in the store")
    return broken


def _of_one(item: str, notes: list[Note], stored: tuple[str, int] | None, answer: str | None) -> Iterable[str]:
    if stored is None:
        yield f"{item} was accepted and is not in the store"
        return
    state, last = stored
    if state not in TERMINAL:
        yield f"{item} is {state} in the store at the end of the run"
    if answer is not None and answer != state:
        yield f"{item} is {state} in the store, but {answer} for its program"
    begun = {note.attempt: note for note in notes if note.what == "began"}
    ended = {note.attempt: note for note in notes if note.what == "ended"}
    if len([note for note in notes if note.what == "began"]) > len(begun):
        yield f"{item} began more than once in one attempt"
    if state == "SUCCEEDED" and last not in ended:
        yield f"{item} succeeded in attempt {last}, which never recorded its end"
    if state == "SUCCEEDED" and any(attempt != last for attempt in ended):
        yield f"{item} did its work in attempts {sorted(ended)}, but {last} is recorded as the successful one"
    yield from _of_attempts(item, begun, ended, last)


def _of_attempts(item: str, begun: Mapping[int, Note], ended: Mapping[int, Note], last: int) -> Iterable[str]:
    for attempt in sorted(set(ended) - set(begun)):
        yield f"{item} ended in attempt {attempt} without having begun"
    if begun and max(begun) > last:
        yield f"{item} ran in attempt {max(begun)}, and the store knows of {last}"
    in_order = [begun[attempt] for attempt in sorted(begun)]
    for before, after in itertools.pairwise(in_order):
        if after.fence <= before.fence:
            yield f"{item}: the fence of attempt {after.attempt} is not above that of {before.attempt}"
        over = ended.get(before.attempt)
        if over is not None and over.at > after.at:
            yield f"{item}: attempt {after.attempt} began before {before.attempt} had ended"

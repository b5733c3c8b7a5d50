"""The checker of chaos rounds rejects invented histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.chaos_history import History, Note, violations


def correct() -> History:
    """``a`` ran once; ``b`` was lost with its cluster in attempt 1, and done in attempt 2."""
    return History(
        acknowledged={"a", "b"},
        answers={"a": "SUCCEEDED", "b": "SUCCEEDED"},
        stored={"a": ("SUCCEEDED", 1), "b": ("SUCCEEDED", 2)},
        notes=[
            Note("a", 1, 1, "began", 10.0),
            Note("a", 1, 1, "ended", 11.0),
            Note("b", 1, 2, "began", 10.0),
            Note("b", 2, 3, "began", 20.0),
            Note("b", 2, 3, "ended", 21.0),
        ],
    )


def test_a_correct_history_has_no_violation() -> None:
    assert violations(correct()) == []


def forged(what: str) -> History:
    history = correct()
    match what:
        case "lost":
            del history.stored["a"]
        case "never over":
            history.stored["a"] = ("RUNNING", 1)
        case "reported otherwise":
            history.answers["a"] = "FAILED"
        case "never ran":
            history.notes = [note for note in history.notes if note.item != "a"]
        case "began twice":
            history.notes.append(Note("a", 1, 1, "began", 10.5))
        case "done twice":
            history.notes.append(Note("b", 1, 2, "ended", 15.0))
        case "at once":
            history.notes.append(Note("b", 1, 2, "ended", 20.5))
        case "fence":
            history.notes = [replace(note, fence=2) if note.item == "b" else note for note in history.notes]
        case "unknown attempt":
            history.notes += [Note("a", 2, 9, "began", 30.0)]
        case "ended without beginning":
            history.notes = [note for note in history.notes if (note.item, note.what) != ("a", "began")]
        case "never accepted":
            history.notes.append(Note("ghost", 1, 5, "began", 1.0))
    return history


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("lost", "a was accepted and is not in the store"),
        ("never over", "a is RUNNING in the store"),
        ("reported otherwise", "but FAILED for its program"),
        ("never ran", "a succeeded in attempt 1, which never recorded its end"),
        ("began twice", "a began more than once in one attempt"),
        ("done twice", "b did its work in attempts [1, 2]"),
        ("at once", "attempt 2 began before 1 had ended"),
        ("fence", "the fence of attempt 2 is not above that of 1"),
        ("unknown attempt", "a ran in attempt 2, and the store knows of 1"),
        ("ended without beginning", "a ended in attempt 1 without having begun"),
        ("never accepted", "ghost ran and is not in the store"),
    ],
)
def test_a_forged_history_is_rejected(what: str, expected: str) -> None:
    assert any(expected in sentence for sentence in violations(forged(what)))

"""Who judges links under fire must be able to say no: ordeals that never happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.chaos_history import History, Note
from tests.support.fire_history import HEADINGS, LOST_OR_CRASHED, NOT_NOTICED, Item, Ordeal, broken, row, table


def honest() -> tuple[Ordeal, History]:
    """``a`` ran once before it; ``b`` was lost with the agent, and done in attempt 2; ``c`` came afterwards."""
    ordeal = Ordeal(
        "agent killed", "mac", began=100.0, ended=110.0, noticed=103.0, told="CLUSTER_SUSPECT", usable=112.0
    )
    ordeal.items = [
        Item("a", 98.0, True, 98.5, "SUCCEEDED", cluster="mac"),
        Item("b", 101.0, True, 111.0, "SUCCEEDED", cluster="mac"),
        Item("c", 110.5, False, 112.0, "SUCCEEDED", cluster="linux"),
    ]
    history = History(
        stored={"a": ("SUCCEEDED", 1), "b": ("SUCCEEDED", 2), "c": ("SUCCEEDED", 1), "of-another": ("FAILED", 1)},
        notes=[
            Note("a", 1, 1, "began", 98.1),
            Note("a", 1, 1, "ended", 98.4),
            Note("b", 1, 2, "began", 101.1),
            Note("b", 2, 3, "began", 110.2),
            Note("b", 2, 3, "ended", 110.9),
            Note("c", 1, 4, "began", 111.0),
            Note("c", 1, 4, "ended", 111.9),
            Note("of-another", 1, 5, "began", 50.0),
        ],
    )
    return ordeal, history


def test_nothing_is_said_against_an_honest_one() -> None:
    assert broken(*honest()) == []


def forged(what: str) -> tuple[Ordeal, History]:
    ordeal, history = honest()
    first = ordeal.items[0]
    match what:
        case "done twice":
            history.notes.append(Note("b", 1, 2, "ended", 109.0))
        case "overlap":
            history.notes.append(Note("b", 1, 2, "ended", 110.4))
        case "never over":
            history.stored["b"] = ("LOST", 1)
        case "lost":
            del history.stored["c"]
        case "never told":
            ordeal.items[0] = replace(first, state=None, ended=None)
        case "unexplained":
            _fails(ordeal, history, "ClusterLostError", "mac is lost")
        case "another reason":
            ordeal.may_fail_with = LOST_OR_CRASHED
            _fails(ordeal, history, "PicklingError", "mac is lost")
        case "no name":
            ordeal.may_fail_with = LOST_OR_CRASHED
            _fails(ordeal, history, "ClusterLostError", "something is lost")
        case "cancelled":
            ordeal.items[0] = replace(first, state="CANCELLED")
            history.stored["a"] = ("CANCELLED", 1)
        case "elsewhere":
            ordeal.items[0] = replace(first, cluster="linux")
        case "no work":
            ordeal.items = []
        case "unusable":
            ordeal.usable = None
    return ordeal, history


def _fails(ordeal: Ordeal, history: History, error: str, sentence: str) -> None:
    ordeal.items[0] = replace(ordeal.items[0], state="FAILED", error=error, sentence=sentence)
    history.stored["a"] = ("FAILED", 1)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("done twice", "b did its work in attempts [1, 2]"),
        ("overlap", "attempt 2 began before 1 had ended"),
        ("never over", "b is LOST in the store"),
        ("lost", "c was accepted and is not in the store"),
        ("never told", "a was accepted, and its program was never told"),
        ("unexplained", "a failed with ClusterLostError (mac is lost), which agent killed does not explain"),
        ("another reason", "a failed with PicklingError"),
        ("no name", "a failed, and its reason does not name mac"),
        ("cancelled", "a was cancelled, and nobody asked"),
        ("elsewhere", "a was for mac only, and was on linux"),
        ("no work", "there was no work"),
        ("unusable", "mac was never usable again"),
    ],
)
def test_a_forged_one_is_rejected(what: str, said: str) -> None:
    assert any(said in sentence for sentence in broken(*forged(what))), broken(*forged(what))


def test_a_failure_with_its_true_reason_is_no_broken_promise() -> None:
    ordeal, history = honest()
    ordeal.may_fail_with = LOST_OR_CRASHED
    _fails(ordeal, history, "ClusterLostError", "mac is lost")
    assert broken(ordeal, history) == []
    assert dict(zip(HEADINGS, row(ordeal, []), strict=True))["failed, with"] == "1 × ClusterLostError"


def test_the_table_tells_what_was_measured() -> None:
    ordeal, _ = honest()
    told = dict(zip(HEADINGS, row(ordeal, ["one"]), strict=True))
    assert told == {
        "trouble": "agent killed",
        "lasted": "10.0 s",
        "noticed after": "3.0 s",
        "told as": "CLUSTER_SUSPECT",
        "usable again after": "2.0 s",
        "median item, before → during": "0.5 s → 5.8 s",
        "items": "3",
        "failed, with": "none",
        "broken promises": "1",
    }
    assert table([row(ordeal, [])]).splitlines()[1].count("---") == len(HEADINGS)


def test_what_was_not_felt_is_not_taken_for_good() -> None:
    ordeal, _ = honest()
    ordeal.noticed, ordeal.told, ordeal.usable, ordeal.items = None, "", None, []
    told = dict(zip(HEADINGS, row(ordeal, []), strict=True))
    assert told["noticed after"] == NOT_NOTICED
    assert told["usable again after"] == "never"
    assert told["median item, before → during"] == "none ended well → none ended well"

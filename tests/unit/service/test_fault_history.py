"""The checker of network faults rejects invented histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.chaos_history import History, Note
from tests.support.fault_history import HEADINGS, LOST_OR_CRASHED, NOT_NOTICED, FaultRun, Item, row, table, violated


def correct() -> tuple[FaultRun, History]:
    """``a`` ran once before it; ``b`` was lost with the agent, and done in attempt 2; ``c`` came afterwards."""
    fault_run = FaultRun(
        "agent killed", "mac", began=100.0, ended=110.0, noticed=103.0, states="CLUSTER_SUSPECT", usable=112.0
    )
    fault_run.items = [
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
    return fault_run, history


def test_a_correct_history_has_no_violation() -> None:
    assert violated(*correct()) == []


def forged(what: str) -> tuple[FaultRun, History]:
    fault_run, history = correct()
    first = fault_run.items[0]
    match what:
        case "done twice":
            history.notes.append(Note("b", 1, 2, "ended", 109.0))
        case "overlap":
            history.notes.append(Note("b", 1, 2, "ended", 110.4))
        case "never over":
            history.stored["b"] = ("LOST", 1)
        case "lost":
            del history.stored["c"]
        case "never reported":
            fault_run.items[0] = replace(first, state=None, ended=None)
        case "unexplained":
            _fails(fault_run, history, "ClusterLostError", "mac is lost")
        case "another reason":
            fault_run.may_fail_with = LOST_OR_CRASHED
            _fails(fault_run, history, "PicklingError", "mac is lost")
        case "no name":
            fault_run.may_fail_with = LOST_OR_CRASHED
            _fails(fault_run, history, "ClusterLostError", "something is lost")
        case "cancelled":
            fault_run.items[0] = replace(first, state="CANCELLED")
            history.stored["a"] = ("CANCELLED", 1)
        case "elsewhere":
            fault_run.items[0] = replace(first, cluster="linux")
        case "no work":
            fault_run.items = []
        case "unusable":
            fault_run.usable = None
    return fault_run, history


def _fails(fault_run: FaultRun, history: History, error: str, sentence: str) -> None:
    fault_run.items[0] = replace(fault_run.items[0], state="FAILED", error=error, sentence=sentence)
    history.stored["a"] = ("FAILED", 1)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("done twice", "b did its work in attempts [1, 2]"),
        ("overlap", "attempt 2 began before 1 had ended"),
        ("never over", "b is LOST in the store"),
        ("lost", "c was accepted and is not in the store"),
        ("never reported", "a was accepted, and its end was never reported"),
        ("unexplained", "a failed with ClusterLostError (mac is lost), which agent killed does not explain"),
        ("another reason", "a failed with PicklingError"),
        ("no name", "a failed, and its reason does not name mac"),
        ("cancelled", "a was cancelled without a request"),
        ("elsewhere", "a was for mac only, and was on linux"),
        ("no work", "there was no work"),
        ("unusable", "mac was never usable again"),
    ],
)
def test_a_forged_history_is_rejected(what: str, expected: str) -> None:
    assert any(expected in sentence for sentence in violated(*forged(what))), violated(*forged(what))


def test_a_failure_with_its_true_reason_is_no_violation() -> None:
    fault_run, history = correct()
    fault_run.may_fail_with = LOST_OR_CRASHED
    _fails(fault_run, history, "ClusterLostError", "mac is lost")
    assert violated(fault_run, history) == []
    assert dict(zip(HEADINGS, row(fault_run, []), strict=True))["failed, with"] == "1 × ClusterLostError"


def test_the_table_shows_the_measurements() -> None:
    fault_run, _ = correct()
    cells = dict(zip(HEADINGS, row(fault_run, ["one"]), strict=True))
    assert cells == {
        "fault": "agent killed",
        "lasted": "10.0 s",
        "noticed after": "3.0 s",
        "reported as": "CLUSTER_SUSPECT",
        "usable again after": "2.0 s",
        "median item, before → during": "0.5 s → 5.8 s",
        "items": "3",
        "failed, with": "none",
        "violations": "1",
    }
    assert table([row(fault_run, [])]).splitlines()[1].count("---") == len(HEADINGS)


def test_missing_measurements_are_named() -> None:
    fault_run, _ = correct()
    fault_run.noticed, fault_run.states, fault_run.usable, fault_run.items = None, "", None, []
    cells = dict(zip(HEADINGS, row(fault_run, []), strict=True))
    assert cells["noticed after"] == NOT_NOTICED
    assert cells["usable again after"] == "never"
    assert cells["median item, before → during"] == "none succeeded → none succeeded"

"""The checker of actors in chaos rounds rejects invented histories, one for each rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.chaos_actor_history import RULES, ActorHistory, Called, Ran, actor_violations
from tests.support.chaos_history import Note

LOST = "it was on its way when the service was restarted; whether it ran is not known"


def correct() -> ActorHistory:
    """Two callers. The actor died with its cluster in attempt 1; of the two calls that were lost, one had run."""
    return ActorHistory(
        "a",
        ("CANCELLED", 2),
        "CANCELLED",
        made=[Note("a", 1, 1, "began", 10.0), Note("a", 2, 2, "began", 20.0)],
        ran=[
            Ran("a", 1, 0, 0, "x", 11.0, 12.0),
            Ran("a", 1, 1, 0, "y", 12.0, 13.0),
            Ran("a", 2, 0, 2, "z", 21.0, 22.0),
        ],
        calls=[
            Called(0, 0, value="x"),
            Called(0, 1, error="ActorDiedError", message=LOST),
            Called(0, 2, value="z"),
            Called(1, 0, error="ActorDiedError", message=LOST),
        ],
    )


def test_a_correct_history_has_no_violation() -> None:
    explanation = correct()
    assert actor_violations(explanation) == []
    assert explanation.ran_though_lost() == 1


def forged(what: str) -> ActorHistory:
    explanation = correct()
    match what:
        case "never made":
            explanation.made, explanation.ran, explanation.calls, explanation.stored = [], [], [], ("CANCELLED", 1)
        case "made twice":
            explanation.made.append(Note("a", 2, 2, "began", 20.5))
        case "unknown attempt":
            explanation.made.append(Note("a", 3, 3, "began", 30.0))
        case "called before it was made":
            explanation.ran[0] = replace(explanation.ran[0], attempt=0)
        case "two at once":
            explanation.ran[1] = replace(explanation.ran[1], ended=20.5)
        case "ran twice":
            explanation.ran.append(Ran("a", 2, 1, 0, "other", 23.0, 24.0))
        case "never called":
            explanation.ran.append(Ran("a", 2, 1, 7, "other", 23.0, 24.0))
        case "another value":
            explanation.calls[0] = Called(0, 0, value="z")
        case "a value without a run":
            del explanation.ran[0]
        case "overtaken":
            explanation.ran[0], explanation.ran[2] = (
                replace(explanation.ran[0], number=2),
                replace(explanation.ran[2], number=0),
            )
            explanation.calls[0], explanation.calls[2] = Called(0, 0, value="z"), Called(0, 2, value="x")
        case "not waited for":
            explanation.ran[0] = replace(explanation.ran[0], attempt=2, began=20.5, ended=21.5)
        case "lost without a reason":
            explanation.calls[1] = replace(
                explanation.calls[1], error="UnknownItemError", message="There is no item 'a' here."
            )
        case "a foreign error":
            explanation.calls[1] = replace(explanation.calls[1], error="KeyError", ours=False)
        case "ran after all":
            explanation.calls[3] = replace(explanation.calls[3], message="call-4 was not sent: actor a was killed.")
        case "silent":
            explanation.calls[1] = Called(0, 1)
        case "lives on":
            explanation.stored = ("RUNNING", 2)
        case "reported otherwise":
            explanation.reported = "FAILED"
    return explanation


FORGED = [
    ("never made", "made once in each attempt", "it was accepted, and never made in attempt 1"),
    ("made twice", "made once in each attempt", "it was made 2 times in attempt 2"),
    ("unknown attempt", "made once in each attempt", "it was made in attempt 3, and the store knows of 2"),
    ("called before it was made", "made once in each attempt", "call 0/0 ran in attempt 0, in which it was never made"),
    ("two at once", "one attempt at a time", "attempt 1 was still active when 2 had begun"),
    ("ran twice", "at most once", "call 1/0 ran 2 times"),
    ("never called", "at most once", "call 1/7 ran, but was never called"),
    ("another value", "value matches run", "call 0/0 was answered with z, and what ran returned x"),
    ("a value without a run", "value matches run", "call 0/0 was answered with x, and what ran returned no value"),
    ("overtaken", "in order", "call 0/2 ran before 0/0, which was made earlier"),
    ("not waited for", "in order", "call 0/0 was not over when 0/2 began"),
    ("lost without a reason", "errors are accurate", "call 0/1 failed, and its error does not say whether"),
    ("a foreign error", "errors are accurate", "call 0/1 failed with KeyError, which is not a"),
    ("ran after all", "errors are accurate", "call 1/0 ran, but its error denies that"),
    ("silent", "every call is answered", "call 0/1 was never answered"),
    ("lives on", "ended by kill", "it is RUNNING in the store"),
    ("reported otherwise", "ended by kill", "but FAILED for its program"),
]


@pytest.mark.parametrize(("what", "rule", "expected"), FORGED)
def test_a_forged_history_is_rejected_by_its_rule(what: str, rule: str, expected: str) -> None:
    explanation = forged(what)
    assert any(expected in sentence for sentence in RULES[rule](explanation))
    assert any(expected in sentence for sentence in actor_violations(explanation))


def test_each_rule_has_one() -> None:
    assert {rule for _, rule, _ in FORGED} == set(RULES)

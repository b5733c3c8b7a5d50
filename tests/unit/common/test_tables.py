"""A decision for people: the same lines wherever it is printed."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import CandidateReport, Rejection, SchedulingDecision
from ray_multicluster_scheduler.common.tables import (
    columns,
    decision_rows,
    decision_text,
    fails_at_once,
    reason_lines,
)

FULL = Rejection("NO_CAPACITY", "1 CPU is free on its largest node, 4 are asked for")
SMALL = Rejection("TOO_BIG", "its largest node has 2 CPUs", permanent=True)
ROWS = (
    CandidateReport("mac", (), {"preferred": 1, "tags": 0}, {"load": 0.55, "room": 0.25}, {"load": 1.2}, 0.8),
    CandidateReport("linux", (), {"preferred": 0}, {"load": 0.5}, {}, 0.5),
    CandidateReport("centos", (FULL,)),
    CandidateReport("old", (FULL, SMALL)),
)
PLACED = SchedulingDecision("t", 1000.0, "mac", "PLACED", "mac: the best score", ROWS)
WAITING = SchedulingDecision("t", 1000.0, None, "NO_CAPACITY", "centos is full", ROWS[2:], "enough is freed on centos")


def test_each_cluster_has_a_verdict_and_what_it_was_judged_by() -> None:
    lines = decision_rows(PLACED)
    assert [(line.cluster, line.verdict) for line in lines] == [
        ("mac", "chosen"),
        ("linux", "fits"),
        ("centos", "waits"),
        ("old", "never"),
    ]
    assert lines[0].ranks == "preferred 1, tags 0"
    assert lines[0].scores == "load 0.550 (1.2), room 0.250, total 0.800"
    assert lines[1].scores == "load 0.500", "one score needs no total"
    assert lines[0].why == "passes every filter"
    assert (lines[2].ranks, lines[2].scores) == ("–", "–")
    assert lines[3].why == (
        "NO_CAPACITY: 1 CPU is free on its largest node, 4 are asked for; TOO_BIG: its largest node has 2 CPUs"
    )


def test_sentences_are_joined_by_one_sign() -> None:
    row = CandidateReport("a", (Rejection("X", "it is not asked (2 times)."), Rejection("Y", "it is closed.")))
    decision = SchedulingDecision("t", 1.0, None, "X", "it waits", (row,))
    assert decision_rows(decision)[0].why == "X: it is not asked (2 times); Y: it is closed."


def test_as_text_and_by_str_and_from_data() -> None:
    text = decision_text(WAITING)
    assert text.splitlines()[:2] == [
        "NO_CAPACITY: it waits; the reason of each cluster is below",
        "It can continue when enough is freed on centos.",
    ]
    assert text.splitlines()[2].split() == ["CLUSTER", "VERDICT", "WHY"], "nobody was ranked, or scored"
    placed = SchedulingDecision("t", 1.0, "mac", "PLACED", "mac: it fits", ROWS)
    assert decision_text(placed).splitlines()[1].split() == ["CLUSTER", "VERDICT", "RANKS", "SCORES", "WHY"]
    assert len(text.splitlines()) == 5
    assert str(WAITING) == text == decision_text(WAITING.to_dict())
    assert decision_text(SchedulingDecision("t", 1.0, None, "NO_CLUSTERS", "there is none")) == (
        "NO_CLUSTERS: there is none"
    )


def test_a_reason_in_the_table_is_not_repeated_above_it() -> None:
    never = SchedulingDecision("t", 1.0, None, "TOO_BIG", "old: its largest node has 2 CPUs", ROWS[3:])
    assert decision_text(never).startswith("TOO_BIG: no cluster can take it, and waiting would not help\n")
    assert decision_text(never).count("its largest node has 2 CPUs") == 1
    paused = SchedulingDecision("t", 1.0, None, "OWNER_PAUSED", "the queue of ann is paused", ROWS[2:])
    assert decision_text(paused).startswith("OWNER_PAUSED: the queue of ann is paused\n")
    assert decision_text(PLACED).startswith("PLACED: mac: the best score\n")


def test_it_fails_at_once_if_all_say_no_for_good() -> None:
    never = SchedulingDecision("t", 1.0, None, "TOO_BIG", "old: its largest node has 2 CPUs", ROWS[3:])
    assert fails_at_once(decision_rows(never))
    assert not fails_at_once(decision_rows(WAITING))
    assert not fails_at_once([]), "there may be clusters one day"


def test_in_an_error_a_permanent_reason_stands_alone() -> None:
    assert reason_lines(ROWS[2:]) == (
        "  centos: 1 CPU is free on its largest node, 4 are asked for\n  old: its largest node has 2 CPUs"
    )


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns(("A", "B"), [("x", 1), ("long", "y")]) == "A     B\nx     1\nlong  y"

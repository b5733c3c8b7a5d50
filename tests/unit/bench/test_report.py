"""Reports: medians, ratios inside the run, and verdicts that a missing figure cannot pass."""

from __future__ import annotations

from typing import Any

import pytest

from bench._measure import Figures
from bench._parts import PROMISES, Part, Promise, Request, all_parts
from bench._report import report, table
from bench.tasks import chosen, exit_code


def figures(name: str, unit: str = "x/s", /, errors: dict[str, str] | None = None, **rounds: list[float]) -> Figures:
    part = Part(name, "a title", unit, {contender: Request("tasks") for contender in rounds}, ())
    return Figures(part, rounds, errors or {})


def verdicts(document: dict[str, Any]) -> dict[str, tuple[float | None, bool]]:
    return {one["promise"]: (one["ratio"], one["passed"]) for one in document["floors"] + document["aims"]}


def test_a_part_has_medians_and_ratios_of_them() -> None:
    part = report([figures("throughput", rmcs=[300.0, 900.0, 600.0], ray_client=[400.0, 1.0, 800.0])])["parts"]
    assert part["throughput"]["medians"] == {"rmcs": 600.0, "ray_client": 400.0}
    assert part["throughput"]["ratios"] == {"rmcs/ray_client": 1.5}
    assert part["throughput"]["rounds"]["rmcs"] == [300.0, 900.0, 600.0]


def test_floors_and_aims_are_judged_in_the_right_direction() -> None:
    document = report(
        [
            figures(
                "throughput",
                rmcs=[150.0],
                rmcs_service=[99.0],
                rmcs_ray_client=[101.0],
                ray_client=[100.0],
                native=[200.0],
            ),
            figures("round_trip", "ms", rmcs=[7.1], ray_client=[10.0], native=[8.0]),
        ]
    )
    assert verdicts(document) == {
        "throughput: rmcs >= 1.5 x ray_client": (1.5, True),
        "throughput: rmcs_service >= 1 x ray_client": (0.99, False),
        "throughput: rmcs_ray_client >= 1 x ray_client": (1.01, True),
        "throughput: rmcs >= 0.8 x native": (0.75, False),
        "round_trip: rmcs <= 0.7 x ray_client": (0.71, False),
        "round_trip: rmcs <= 1.5 x native": (0.887, True),
        "throughput: rmcs >= 1 x native": (0.75, False),
        "round_trip: rmcs <= 1 x native": (0.887, True),
    }


def test_what_the_issue_promises_is_judged() -> None:
    floors = {(one.part, one.against, one.factor, one.higher_is_better) for one in PROMISES if one.kind == "floor"}
    assert floors == {
        ("throughput", "ray_client", 1.5, True),
        ("throughput", "ray_client", 1.0, True),
        ("throughput", "native", 0.8, True),
        ("round_trip", "native", 1.5, False),
        ("round_trip", "ray_client", 0.7, False),
        ("actor_calls", "ray_client", 1.2, True),
        ("map", "native", 5.0, True),
        ("large_result", "ray_client", 1.0, True),
        ("large_result", "socket", 0.3, True),
        ("large_argument", "ray_client", 1.0, True),
        ("large_argument", "socket", 0.3, True),
    }
    turns = {part.name: set(part.turns) for part in all_parts(tasks=10, singles=3)}
    assert {"rmcs", "rmcs_dial_in", "rmcs_ray_client"} <= turns["throughput"], "every carrier takes part"
    for promise in PROMISES:
        assert {promise.contender, promise.against} <= turns[promise.part]


def test_a_missing_figure_keeps_no_promise_and_is_an_error() -> None:
    document = report([figures("map", errors={"rmcs": "round 1: it broke"}, rmcs=[], native=[10.0])])
    assert verdicts(document) == {"map: rmcs >= 5 x native": (None, False), "map: rmcs >= 20 x native": (None, False)}
    assert document["errors"] == [{"part": "map", "contender": "rmcs", "error": "round 1: it broke"}]
    text = table(document)
    assert "no figure" in text
    assert "ERROR map, rmcs: round 1: it broke" in text
    assert exit_code(document, check=False) == 1


@pytest.mark.parametrize(("check", "code"), [(False, 0), (True, 1)])
def test_a_missed_floor_counts_only_when_asked_for(check: bool, code: int) -> None:
    document = report([figures("map", rmcs=[4.9], native=[1.0])])
    assert "MISS  map: rmcs >= 5 x native  (here 4.90)" in table(document)
    assert exit_code(document, check) == code


def test_a_missed_aim_never_counts() -> None:
    document = report([figures("map", rmcs=[6.0], native=[1.0])])
    assert "PASS  map: rmcs >= 5 x native" in table(document)
    assert "MISS  map: rmcs >= 20 x native" in table(document)
    assert exit_code(document, check=True) == 0


def test_no_ratio_keeps_no_promise() -> None:
    assert not Promise("floor", "map", "native", 0.0, True).kept(None)
    assert not Promise("floor", "map", "native", 9.0, False).kept(None)


def test_parts_are_chosen_by_name_in_their_own_order() -> None:
    parts = all_parts(tasks=10, singles=3)
    assert [part.name for part in chosen("map, throughput", parts)] == ["throughput", "map"]
    assert [part.name for part in chosen("large", parts)] == ["large_result", "large_argument"]
    assert chosen(None, parts) == parts
    with pytest.raises(SystemExit, match="no part speed; choose from throughput, round_trip"):
        chosen("speed", parts)

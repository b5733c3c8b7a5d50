"""Parsing the dashboard's list of actors."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from ray_multicluster_scheduler.scheduler.connection.dashboard.response_parser import actors_route, has_living_actor


def answer(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"result": True, "data": {"result": {"result": list(rows)}}}


def row(**values: Any) -> dict[str, Any]:
    return {"name": "tally", "state": "ALIVE", "is_detached": True, **values}


def test_the_route_asks_for_one_name_in_our_namespace() -> None:
    parts = urlsplit(actors_route("a b&c"))
    query = parse_qsl(parts.query)
    assert parts.path == "/api/v0/actors"
    assert [value for key, value in query if key == "filter_keys"] == ["name", "ray_namespace"]
    assert [value for key, value in query if key == "filter_values"] == ["a b&c", "rmcs"]


@pytest.mark.parametrize(
    ("rows", "there"),
    [
        ([], False),
        ([row()], True),
        ([row(state="RESTARTING")], True),
        ([row(state="DEAD")], False),
        ([row(state="DEAD"), row(state="PENDING_CREATION")], True),
        ([row(is_detached=False)], False),
        ([row(name="other")], False),
    ],
)
def test_living_ones(rows: list[dict[str, Any]], there: bool) -> None:
    assert has_living_actor(answer(*rows), "tally") is there


@pytest.mark.parametrize("strange", [{}, {"data": None}, {"data": {"result": {}}}, answer({"name": "tally"}), []])
def test_another_shape_is_an_error(strange: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        has_living_actor(strange, "tally")

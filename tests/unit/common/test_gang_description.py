"""The description of a gang: what is refused, what makes two of them differ, and there and back as plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.gang_values import joined
from ray_multicluster_scheduler.common.model import GangDescription, TaskDescription
from ray_multicluster_scheduler.common.model.gang_description import MAX_MEMBERS
from tests.unit.lifecycle.driver import actor, job, task
from tests.unit.lifecycle.gangs import gang, members


def test_there_and_back_as_plain_data() -> None:
    item = gang("g", 1, {"CPU": 2.0, "GPU": 1.0}, strategy="SPREAD", of="actor", ready_timeout=None)
    assert TaskDescription.from_dict(json.loads(json.dumps(item.to_dict()))) == item
    assert item.gang is not None
    assert GangDescription.from_dict(item.gang.to_dict()) == item.gang


def test_all_members_together_are_what_it_asks_for() -> None:
    item = gang("g", 1, {"CPU": 2.0, "GPU": 1.0})
    assert item.requirements == item.placement == {"CPU": 3.0, "GPU": 1.0}
    assert item.gang is not None
    assert item.gang.describe() == "2 members (1 × 1 CPU, 1 × 2 CPU, 1 GPU; PACK)"
    assert gang("g", 1).gang.describe() == "1 member (1 × 1 CPU; PACK)"  # type: ignore[union-attr]  # it is one


def test_the_order_of_members_makes_no_other_shape_but_all_else_does() -> None:
    shape = gang("g", 1, 2).gang_shape
    assert gang("h", 2, 1).gang_shape == shape
    others = [gang("g", 1, 1, 1), gang("g", 1, 2, strategy="SPREAD"), gang("g", 1, 2, of="actor"), gang("g", 3)]
    assert shape not in [other.gang_shape for other in others]
    assert task("t").gang_shape is None


def test_which_rules_hold_for_it() -> None:
    assert gang("g", 1).base_kind == "task"
    assert gang("g", 1, of="actor").base_kind == "actor"
    assert [one.base_kind for one in (task("t"), actor("a"), job("j"))] == ["task", "actor", "job"]
    assert [one.runs_actors for one in (gang("g", 1), gang("g", 1, of="actor"), actor("a"), task("t"))] == [
        False,
        True,
        True,
        False,
    ]


def test_all_payloads_are_named_once_for_each_member() -> None:
    assert gang("g", 1, 1).payload_digests == ("function", "arguments") * 2
    assert task("t", function_digest="f", arguments_digest="a").payload_digests == ("f", "a")
    assert job("j").payload_digests == (None, None)


@pytest.mark.parametrize(
    ("values", "output"),
    [
        ({"members": ()}, "no members"),
        ({"members": members(*[1] * (MAX_MEMBERS + 1))}, f"at most {MAX_MEMBERS}"),
        ({"strategy": "LOOSE"}, "strategy is 'LOOSE'.*STRICT_SPREAD"),
        ({"ready_timeout": 0}, "ready_timeout is 0"),
    ],
)
def test_invalid_gangs_are_rejected(values: dict[str, Any], output: str) -> None:
    with pytest.raises(ConfigurationError, match=output):
        GangDescription(**{"members": members(1), **values})


def test_a_member_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="f0 of a gang requests nothing"):
        members({"CPU": 0.0})


@pytest.mark.parametrize("kind", ["gang", "task"])
def test_half_a_gang_is_refused(kind: str) -> None:
    described = GangDescription(members(1)) if kind == "task" else None
    with pytest.raises(ConfigurationError, match='field "gang"'):
        TaskDescription(id="x", kind=kind, name="x", gang=described)  # type: ignore[arg-type]  # on purpose


def test_values_are_joined_without_being_loaded() -> None:
    parts = [pickling.dumps(value) for value in ({"a": 1}, [1, 2], None)]
    assert pickling.loads(joined(parts)) == [{"a": 1}, [1, 2], None]
    joined([b"not a pickle"])

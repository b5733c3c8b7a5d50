"""What a cluster says of a gang: each member needs a node beside the others."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement
from ray_multicluster_scheduler.scheduler.policy.filters.capacity import CapacityFilter
from ray_multicluster_scheduler.scheduler.policy.filters.size import SizeFilter
from tests.unit.lifecycle.gangs import gang
from tests.unit.policy.views import node, view

TWO_NODES = (node({"CPU": 8.0}), node({"CPU": 4.0}, name="n2"))


def test_the_members_parts_are_reserved_node_by_node() -> None:
    assert find_placement(gang("g", 4, 4, 4), TWO_NODES) == {"n1": {"CPU": 8.0}, "n2": {"CPU": 4.0}}
    assert find_placement(gang("g", 1, 2), TWO_NODES) == {"n2": {"CPU": 3.0}}
    assert find_placement(gang("g", 1, 2, strategy="STRICT_SPREAD"), TWO_NODES) == {
        "n1": {"CPU": 1.0},
        "n2": {"CPU": 2.0},
    }
    assert find_placement(gang("g", 8, 5), TWO_NODES) is None


def test_a_node_of_which_nothing_is_known_gives_no_room() -> None:
    nodes = (node({"CPU": 8.0}, unknown=True), node({"CPU": 4.0}, name="n2"))
    assert find_placement(gang("g", 2, 2, 2), nodes) is None
    rejection = CapacityFilter().check(gang("g", 2, 2, 2), view("c", *nodes))
    assert rejection is not None
    assert rejection.code == "CAPACITY_UNKNOWN"


def test_a_gang_that_does_not_fit_now_waits_with_the_free_amounts() -> None:
    cluster = view("c", node({"CPU": 8.0}, {"CPU": 3.0}), node({"CPU": 4.0}, {"CPU": 3.0}, name="n2"))
    assert CapacityFilter().check(gang("g", 3, 3), cluster) is None
    rejection = CapacityFilter().check(gang("g", 2, 2, 2), cluster)
    assert rejection is not None
    assert (rejection.code, rejection.permanent) == ("NO_CAPACITY", False)
    assert "its 3 members (3 × 2 CPU; PACK) do not fit what is free" in rejection.sentence
    assert "6 CPU" in rejection.sentence


def test_what_the_empty_nodes_never_hold_is_for_good() -> None:
    cluster = view("c", *TWO_NODES)
    assert SizeFilter().check(gang("g", 4, 4, 4), cluster) is None
    rejection = SizeFilter().check(gang("g", 5, 5), cluster)
    assert rejection is not None
    assert (rejection.code, rejection.permanent) == ("TOO_BIG", True)
    assert (
        "2 members (2 × 5 CPU; PACK) never fit together on what it has (2 nodes, in all 12 CPU)" in rejection.sentence
    )
    assert SizeFilter().check(gang("g", 4, 5, strategy="STRICT_PACK"), cluster) is not None
    assert SizeFilter().check(gang("g", 1, 1, 1, strategy="STRICT_SPREAD"), cluster) is not None


def test_full_nodes_are_not_too_small() -> None:
    full = view("c", node({"CPU": 8.0}, {"CPU": 0.0}))
    assert SizeFilter().check(gang("g", 4, 4), full) is None
    assert CapacityFilter().check(gang("g", 4, 4), full) is not None


def test_without_a_snapshot_there_is_no_verdict() -> None:
    unknown = view("c", snapshot_at=None)
    assert SizeFilter().check(gang("g", 100), unknown) is None
    assert CapacityFilter().check(gang("g", 100), unknown) is None


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ({"autoscaling": True}, True),
        ({"autoscaling": True, "max_node": {"CPU": 16.0}}, True),
        ({"autoscaling": True, "max_node": {"CPU": 4.0}}, False),
        ({"max_node": {"CPU": 10.0}}, True),
        ({"past_node_sizes": ({"CPU": 10.0},)}, True),
        ({"largest_node_set": ({"CPU": 8.0}, {"CPU": 10.0})}, True),
        ({"largest_node_set": ({"CPU": 8.0}, {"CPU": 9.0})}, False),
        ({"past_node_sizes": ({"CPU": 8.0},)}, False),
        ({"past_node_sizes": ({"CPU": 8.0, "memory": 1.0},)}, False),
    ],
)
def test_nodes_that_may_still_come_count(values: dict[str, object], fits: bool) -> None:
    cluster = view("c", node({"CPU": 8.0}), **values)
    assert (SizeFilter().check(gang("g", 8, 10), cluster) is None) is fits


def test_the_same_node_in_other_words_is_not_a_second_one() -> None:
    """Sources of snapshots do not name the same resources."""
    cluster = view("c", node({"CPU": 2.0, "memory": 8.0}), past_node_sizes=({"CPU": 2.0, "memory": 9.0},))
    assert SizeFilter().check(gang("g", 1, 1, 1), cluster) is not None


def test_a_strict_pack_needs_one_new_node_for_all() -> None:
    cluster = view("c", node({"CPU": 8.0}), autoscaling=True, max_node={"CPU": 16.0})
    assert SizeFilter().check(gang("g", 8, 8, strategy="STRICT_PACK"), cluster) is None
    assert SizeFilter().check(gang("g", 8, 9, strategy="STRICT_PACK"), cluster) is not None

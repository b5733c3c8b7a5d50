"""The score `pack`: nodes are filled, faster clusters first."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.policy.pack_policy import PackPolicy
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from tests.unit.lifecycle.driver import actor, job, task
from tests.unit.policy.views import node, view

EIGHT = {"CPU": 8.0}


@pytest.mark.parametrize(
    ("free", "fill"),
    [
        ([8.0], 0.25),  # 6 of 8 stay free
        ([2.0], 1.0),  # nothing does
        ([8.0, 3.0], 0.875),  # the node that it fills best counts
        ([8.0, 1.0], 0.25),  # not one that it does not fit
        ([1.0], 0.0),
    ],
)
def test_pack_score(free: list[float], fill: float) -> None:
    cluster = view("c", *(node(EIGHT, {"CPU": amount}) for amount in free))
    assert PackPolicy().score(task("t", 2), cluster) == pytest.approx((fill + 0.5) / 2)


def test_the_resource_of_which_most_is_left_decides() -> None:
    cluster = view("c", node({"CPU": 8.0, "GPU": 2.0}))
    both = task("t", requirements={"CPU": 8.0, "GPU": 1.0})
    assert PackPolicy().score(both, cluster) == pytest.approx((0.5 + 0.5) / 2)


def test_the_weight_counts_as_much() -> None:
    light, heavy = (PackPolicy().score(task("t", 2), view("c", weight=weight)) for weight in (1.0, 3.0))
    assert heavy - light == pytest.approx((0.75 - 0.5) / 2)


def test_what_fills_no_node() -> None:
    unknown = view("c", node(EIGHT, unknown=True))
    assert PackPolicy().score(task("t", 2), unknown) == 0.25
    assert PackPolicy().score(task("t", 0), view("c")) == 0.25
    assert PackPolicy().score(job("j", 12), view("c", node(EIGHT), node(EIGHT, name="n2"))) == 0.25
    assert PackPolicy().score(task("t", 2), view("c", nodes=())) == 0.25


def test_an_actor_is_judged_by_what_it_is_placed_by() -> None:
    assert PackPolicy().score(actor("a"), view("c", node(EIGHT, {"CPU": 1.0}))) == 0.75


def test_small_ones_leave_whole_nodes_alone() -> None:
    engine = PolicyEngine(Settings(weights={"pack": 1.0}, resource_threshold=1))
    begun, whole = view("begun", node(EIGHT, {"CPU": 4.0})), view("whole")
    assert engine.schedule(task("t", 1), [whole, begun], 0.0).cluster == "begun"
    assert engine.schedule(task("t", 8), [whole, begun], 0.0).cluster == "whole"

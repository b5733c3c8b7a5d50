"""What a view works out, the node that is still to be added, and the fleet that keeps views."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE, ClusterView, NewNode, Unlimited
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement, fits_now, needs_new_node
from ray_multicluster_scheduler.scheduler.cluster.fleet_views import FleetViews
from tests.unit.lifecycle.driver import job, snapshot, task
from tests.unit.policy.views import node, view

# ---- the node that is still to be added


@pytest.mark.parametrize(
    ("size", "ours", "cpus", "whole", "takes"),
    [
        ({"CPU": 8.0}, {}, 8, None, True),
        ({"CPU": 8.0}, {"CPU": 4.0}, 4, None, True),
        ({"CPU": 8.0}, {"CPU": 4.0}, 5, None, False),
        ({"CPU": 8.0}, {}, 20, None, False),
        ({"CPU": 8.0}, {}, 20, {}, True),
        ({"CPU": 8.0}, {}, 20, {"CPU": 8.0}, True),
        ({"CPU": 8.0}, {}, 20, {"CPU": 9.0}, False),
        ({"CPU": 8.0}, {"CPU": 1.0}, 20, {}, False),
        ({"GPU": 8.0}, {}, 20, {}, False),
        (None, {}, 1000, None, True),
        (None, {"CPU": 1.0}, 1, None, False),
    ],
)
def test_new_node_fits(
    size: dict[str, float] | None, ours: dict[str, float], cpus: float, whole: dict[str, float] | None, takes: bool
) -> None:
    assert NewNode(size, ours).fits({"CPU": float(cpus)}, whole=whole) is takes


def test_new_node_max_free() -> None:
    assert NewNode({"CPU": 8.0}, {"CPU": 3.0}).max_free(endless=False) == {"CPU": 5.0}
    assert NewNode({"CPU": 8.0}, {"CPU": 3.0}).max_free(endless=True) == {"CPU": 5.0}
    assert NewNode(None, {"CPU": 3.0}).max_free(endless=False) == {}
    assert isinstance(NewNode({"CPU": 8.0}, {}).max_free(endless=True), Unlimited)
    assert NewNode(None, {}).max_free(endless=False).get("anything") == float("inf")


def test_an_item_goes_to_a_new_node_only_where_it_fits_no_other() -> None:
    new = NewNode({"CPU": 8.0}, {})
    full, half = node({"CPU": 4.0}, {"CPU": 0.0}), node({"CPU": 4.0}, {"CPU": 2.0})
    assert find_placement(task("t", cpus=4), [full], new) == {NEW_NODE: {"CPU": 4.0}}
    assert find_placement(task("t", cpus=2), [half], new) == {"n1": {"CPU": 2.0}}
    assert find_placement(task("t", cpus=9), [full], new) is None
    assert find_placement(task("t", cpus=4), [full]) is None
    assert find_placement(job("j", cpus=2), [half], new) == {"n1": {"CPU": 2.0}}
    assert find_placement(job("j", cpus=30), [half], new) == {NEW_NODE: {"CPU": 30.0}}
    assert find_placement(task("t", cpus=4), [node({"CPU": 4.0}, unknown=True)], new) is None
    assert find_placement(task("t", cpus=0), [full], new) == {}


def test_needs_new_node() -> None:
    grows = view("c", node({"CPU": 4.0}, {"CPU": 1.0}), new_node=NewNode(None, {}))
    stays = view("c", node({"CPU": 4.0}, {"CPU": 1.0}))
    assert needs_new_node(task("t", cpus=2), grows)
    assert not needs_new_node(task("t"), grows)
    assert not needs_new_node(task("t", cpus=2), stays)
    assert fits_now(task("t", cpus=2), grows)
    assert fits_now(task("t"), stays)
    assert not fits_now(task("t", cpus=2), stays)
    assert fits_now(job("j"), stays)
    assert not fits_now(job("j", cpus=2), stays)


# ---- what a view works out


def test_totals_and_use_count_nodes_of_which_something_is_known() -> None:
    some = view("c", node({"CPU": 8.0}, {"CPU": 2.0}), node({"CPU": 8.0}, unknown=True, name="n2"))
    assert (some.total, some.free, some.use) == ({"CPU": 16.0}, {"CPU": 2.0}, {"CPU": 0.75})
    assert some.most_free == {"CPU": 2.0}
    assert ClusterView.total.__doc__ == "The total of all nodes."


def test_the_most_that_is_free_on_one_node() -> None:
    some = view("c", node({"CPU": 8.0, "GPU": 0.0}, {"CPU": 2.0, "GPU": 0.0}), node({"CPU": 8.0}, {"CPU": 1.0}))
    assert some.most_free == {"CPU": 2.0}


# ---- the fleet


def fleet(*names: str) -> tuple[FleetViews, ClusterRegistry]:
    registry = ClusterRegistry(Settings(), [ClusterMetadata(name, dashboard=f"http://{name}:1") for name in names])
    return FleetViews(registry, lambda state, now: state.view(now)), registry


def hear(state: ClusterState, at: float, *cpus: float) -> None:
    state.link_up("3.11.9", "2.60.0", at)
    state.record_snapshot(snapshot(state.name, at, *cpus), at)


def test_views_are_renewed_for_clusters_that_changed() -> None:
    views, registry = fleet("a", "b")
    hear(registry.state("a"), 10.0, 4)
    hear(registry.state("b"), 10.0, 8)
    first = views.views(11.0)
    assert views.views(12.0) is first
    registry.state("a").assign(task("t"), 13.0)
    second = views.views(13.0)
    assert [one.free["CPU"] for one in second] == [3, 8]
    assert second[1] is first[1]


def test_clusters_come_and_go_in_the_order_of_configuration() -> None:
    views, registry = fleet("a", "b")
    assert [one.name for one in views.views(10.0)] == ["a", "b"]
    registry.register(ClusterMetadata("c", dashboard="http://c:1"))
    assert [one.name for one in views.views(10.0)] == ["a", "b", "c"]
    registry.unregister("a")
    registry.changed.add("a")
    assert [one.name for one in views.views(10.0)] == ["b", "c"]
    assert views.view("b", 10.0).name == "b"


def test_what_changes_by_time_alone_is_seen_in_time() -> None:
    views, registry = fleet("a")
    registry.state("a").record_snapshot(snapshot("a", 10.0, 4, source="http"), 10.0)
    assert views.view("a", 11.0).problem is None
    problem = views.view("a", 40.0).problem
    assert problem is not None
    assert problem.code == "STALE_SNAPSHOT"


def test_what_the_fleet_has_is_summed_up_until_a_cluster_has_other_nodes() -> None:
    views, registry = fleet("a", "b")
    hear(registry.state("a"), 10.0, 4)
    hear(registry.state("b"), 10.0, 8)
    assert views.total(11.0) == {"CPU": 12.0}
    hear(registry.state("b"), 12.0, 8, 8)
    assert views.total(12.0) == {"CPU": 12.0}
    views.invalidate_total()
    assert views.total(12.0) == {"CPU": 20.0}

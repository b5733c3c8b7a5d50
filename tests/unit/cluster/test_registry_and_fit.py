"""ClusterRegistry, and where an item fits."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import JobDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_metadata import ClusterMetadata
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE, NewNode, NodeView
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement
from tests.unit.lifecycle.driver import job, snapshot, task


def registry() -> ClusterRegistry:
    clusters = [ClusterMetadata("mac", tags=("arm64", "gpu")), ClusterMetadata("linux", tags=("x86", "gpu"))]
    return ClusterRegistry(Settings(), clusters)


def test_list_get_and_find_by_tag() -> None:
    fleet = registry()
    assert [one.name for one in fleet.list()] == ["mac", "linux"]
    assert fleet.get("mac").tags == ("arm64", "gpu")
    assert [one.name for one in fleet.find_by_tag("gpu")] == ["mac", "linux"]
    assert [one.name for one in fleet.find_by_tag("x86")] == ["linux"]
    assert fleet.find_by_tag("none") == ()
    assert len(fleet) == 2
    assert [state.name for state in fleet] == ["mac", "linux"]


def test_a_third_cluster_of_any_name_works_and_can_go() -> None:
    fleet = registry()
    fleet.register(ClusterMetadata("weird name:1"))
    assert fleet.names() == ("mac", "linux", "weird name:1")
    fleet.unregister("weird name:1")
    assert fleet.find("weird name:1") is None


@pytest.mark.parametrize("method", ["get", "unregister", "latest_snapshot", "state"])
def test_an_unknown_name_is_an_error_that_helps(method: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no cluster 'mca'.*mac, linux.*did you mean 'mac'"):
        getattr(registry(), method)("mca")


def test_a_name_like_no_other_gets_a_general_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"add the cluster to clusters\.yaml"):
        registry().get("zzz")


def test_the_latest_snapshot() -> None:
    fleet = registry()
    assert fleet.latest_snapshot("mac") is None
    seen = snapshot("mac", 5.0, 4)
    fleet.state("mac").record_snapshot(seen, 5.0)
    assert fleet.latest_snapshot("mac") == seen


def test_an_equal_entry_keeps_what_is_known_a_new_address_does_not() -> None:
    fleet = registry()
    fleet.state("mac").record_snapshot(snapshot("mac", 5.0, 4), 5.0)
    fleet.register(ClusterMetadata("mac", tags=("arm64", "gpu")))
    assert fleet.state("mac").view(5.0).has_snapshot
    fleet.register(ClusterMetadata("mac", dashboard="http://elsewhere:1"))
    view = fleet.state("mac").view(5.0)
    assert not view.has_snapshot
    assert view.nodes == ()


def nodes(*free: dict[str, float] | None) -> list[NodeView]:
    return [NodeView(f"n{number}", {"CPU": 8.0, "GPU": 2.0}, {}, {}, one) for number, one in enumerate(free, start=1)]


def test_a_task_fills_the_fullest_node_it_fits() -> None:
    fleet = nodes({"CPU": 8.0}, {"CPU": 3.0}, {"CPU": 2.0}, None)
    assert find_placement(task("t", cpus=2), fleet) == {"n3": {"CPU": 2.0}}
    assert find_placement(task("t", cpus=3), fleet) == {"n2": {"CPU": 3.0}}
    assert find_placement(task("t", cpus=9), fleet) is None


def test_equal_nodes_are_taken_by_name() -> None:
    assert find_placement(task("t", cpus=2), nodes({"CPU": 4.0}, {"CPU": 4.0})) == {"n1": {"CPU": 2.0}}


def test_all_of_what_it_asks_for_has_to_be_on_one_node() -> None:
    need = {"CPU": 2.0, "GPU": 1.0}
    assert find_placement(task("t", requirements=need), nodes({"CPU": 8.0}, {"GPU": 2.0})) is None
    assert find_placement(task("t", requirements=need), nodes({"CPU": 2.0, "GPU": 1.0})) == {"n1": need}


def test_a_job_spreads_only_if_no_node_holds_it_alone() -> None:
    fleet = nodes({"CPU": 3.0}, {"CPU": 8.0}, {"CPU": 4.0})
    assert find_placement(job("j", cpus=4), fleet) == {"n3": {"CPU": 4.0}}
    assert find_placement(job("j", cpus=10), fleet) == {"n2": {"CPU": 8.0}, "n3": {"CPU": 2.0}}
    assert find_placement(job("j", cpus=15), fleet) == {"n2": {"CPU": 8.0}, "n3": {"CPU": 4.0}, "n1": {"CPU": 3.0}}
    assert find_placement(job("j", cpus=16), fleet) is None


def with_entrypoint(cpus: float, entrypoint: float) -> TaskDescription:
    return job("j", cpus=cpus, job=JobDescription("python x.py", entrypoint_resources={"CPU": entrypoint}))


def test_the_entrypoint_of_a_job_needs_one_node_and_the_rest_of_it_does_not() -> None:
    fleet = nodes({"CPU": 3.0}, {"CPU": 8.0}, {"CPU": 4.0})
    assert find_placement(with_entrypoint(0, 4), fleet) == {"n3": {"CPU": 4.0}}
    assert find_placement(with_entrypoint(10, 4), fleet) == {"n2": {"CPU": 6.0}, "n3": {"CPU": 4.0}}
    assert find_placement(with_entrypoint(14, 8), fleet) == {"n3": {"CPU": 4.0}, "n1": {"CPU": 2.0}, "n2": {"CPU": 8.0}}
    assert find_placement(with_entrypoint(0, 9), fleet) is None
    assert find_placement(with_entrypoint(16, 4), fleet) is None


def test_wide_job_entrypoint_needs_capacity_on_one_node() -> None:
    new = NewNode({"CPU": 8.0}, {})
    assert find_placement(with_entrypoint(20, 8), nodes({"CPU": 0.0}), new) == {NEW_NODE: {"CPU": 20.0}}
    assert find_placement(with_entrypoint(20, 12), nodes({"CPU": 0.0}), new) is None
    there = {"n1": {"CPU": 12.0}, NEW_NODE: {"CPU": 8.0}}
    assert find_placement(with_entrypoint(20, 12), nodes({"CPU": 12.0}), new) == there, (
        "Ray starts it where there is room"
    )
    assert find_placement(with_entrypoint(20, 12), nodes({"CPU": 12.0}), NewNode({"CPU": 8.0}, {"CPU": 1.0})) is None
    gpu = {"CPU": 2.0, "GPU": 1.0}
    need = job("j", requirements=gpu, job=JobDescription("x", entrypoint_resources={"CPU": 2.0}))
    assert find_placement(need, nodes({"CPU": 2.0}), NewNode(gpu, {})) == {"n1": {"CPU": 2.0}, NEW_NODE: {"GPU": 1.0}}


def test_of_the_new_node_only_that_is_asked_which_goes_there() -> None:
    gpu = job("j", requirements={"CPU": 8.0, "GPU": 1.0}, job=JobDescription("x", entrypoint_resources={"GPU": 1.0}))
    parts = {"n1": {"GPU": 1.0}, NEW_NODE: {"CPU": 8.0}}
    assert find_placement(gpu, nodes({"CPU": 0.0, "GPU": 1.0}), NewNode({"CPU": 8.0}, {})) == parts
    some_on_its_way = NewNode({"CPU": 8.0}, {"CPU": 1.0})
    parts = {"n1": {"CPU": 3.0}, NEW_NODE: {"CPU": 7.0}}
    assert find_placement(with_entrypoint(10, 3), nodes({"CPU": 3.0}), some_on_its_way) == parts
    assert find_placement(with_entrypoint(11, 3), nodes({"CPU": 3.0}), some_on_its_way) is None


def test_item_without_requirements_fits_everywhere() -> None:
    assert find_placement(job("j"), []) == {}
    assert find_placement(task("t", cpus=0), nodes(None)) == {}

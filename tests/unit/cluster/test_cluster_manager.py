"""ClusterManager: the life cycle of clusters in a registry."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata, NodeSnapshot, ResourceSnapshot, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_manager import ClusterManager
from ray_multicluster_scheduler.scheduler.cluster.cluster_registry import ClusterRegistry
from ray_multicluster_scheduler.scheduler.policy import reasons


def fleet() -> tuple[ClusterManager, ClusterRegistry]:
    registry = ClusterRegistry(Settings(), [ClusterMetadata("a", dashboard="http://a:1")])
    return ClusterManager(registry), registry


def snapshot(at: float) -> ResourceSnapshot:
    nodes = (NodeSnapshot("n1", {"CPU": 4.0}, {"CPU": 4.0}),)
    return ResourceSnapshot("a", at, nodes, "agent")


def test_register_distinguishes_a_new_cluster_from_a_changed_one() -> None:
    manager, registry = fleet()
    assert manager.register(ClusterMetadata("b", dashboard="http://b:1"))
    assert not manager.register(ClusterMetadata("b", dashboard="http://b:2"))
    assert registry.get("b").dashboard == "http://b:2"
    assert registry.names() == ("a", "b")


def test_a_removed_cluster_is_unknown() -> None:
    manager, registry = fleet()
    manager.remove("a")
    assert registry.names() == ()
    with pytest.raises(ConfigurationError):
        manager.remove("a")


@pytest.mark.parametrize("method", ["cordon", "uncordon", "resume", "is_cordoned", "is_drained", "items_on"])
def test_an_unknown_name_is_an_error(method: str) -> None:
    manager, _ = fleet()
    with pytest.raises(ConfigurationError):
        getattr(manager, method)("nobody")


def test_a_cordon_stays_when_the_entry_changes() -> None:
    manager, registry = fleet()
    manager.cordon("a")
    manager.register(ClusterMetadata("a", dashboard="http://a:1", tags=("gpu",)))
    assert manager.is_cordoned("a")
    assert registry.state("a").view(1.0).cordoned
    manager.uncordon("a")
    assert not manager.is_cordoned("a")


def test_a_cluster_is_drained_when_it_is_cordoned_and_nothing_is_left() -> None:
    manager, registry = fleet()
    state = registry.state("a")
    state.record_snapshot(snapshot(1.0), 1.0)
    state.assign(TaskDescription("runs", "task", "f"), 1.0)
    state.slots.add_prefetched(TaskDescription("next", "task", "f"), 1.0)
    assert manager.is_drained("a") is None, "it is open for new work"
    manager.cordon("a")
    assert (manager.items_on("a"), manager.is_drained("a")) == (["runs", "next"], False)
    state.release("runs", 2.0)
    state.slots.remove_prefetched("next")
    assert manager.is_drained("a")


def test_pause_and_resume() -> None:
    manager, registry = fleet()
    manager.pause("a", "tests")
    assert registry.state("a").paused == "tests"
    manager.resume("a")
    assert registry.state("a").paused is None


def test_health_is_what_the_registry_recorded() -> None:
    manager, registry = fleet()
    state = registry.state("a")
    assert (problem := manager.health("a", 0.0).problem) is not None
    assert problem.code == reasons.CLUSTER_UNKNOWN
    state.record_snapshot(snapshot(1.0), 1.0)
    health = manager.health("a", 1.0)
    assert (health.problem, health.link_problem, health.job_problem) == (None, None, None)
    assert health.breaker is BreakerState.CLOSED
    assert health.evidence_of_life is not None
    state.record_link_failure("no route", permanent=False, now=2.0)
    state.record_dashboard_failure("refused", 2.0)
    health = manager.health("a", 2.0)
    assert health.link_problem is not None
    assert health.job_problem is not None
    assert [health.link_problem.code, health.job_problem.code] == [reasons.LINK_FAILED, reasons.DASHBOARD_SILENT]


def test_a_cluster_that_was_declared_dead_comes_back_with_its_next_snapshot() -> None:
    manager, registry = fleet()
    manager.declare_dead("a", "burnt", 5.0)
    assert (problem := manager.health("a", 5.0).problem) is not None
    assert problem.code == reasons.CLUSTER_DEAD
    registry.state("a").record_snapshot(snapshot(6.0), 6.0)
    assert manager.health("a", 6.0).problem is None


def test_closing_the_breaker_returns_whether_it_was_open() -> None:
    manager, registry = fleet()
    state = registry.state("a")
    state.record_snapshot(snapshot(1.0), 1.0)
    assert not manager.close_breaker("a", 1.0)
    for _ in range(state.settings.breaker_failures):
        state.breaker.record_failure(1.0, "it failed")
    assert manager.health("a", 1.0).breaker is BreakerState.OPEN
    assert manager.close_breaker("a", 1.0)
    assert manager.health("a", 1.0).breaker is BreakerState.CLOSED


def test_restore_sets_what_operators_had_ordered() -> None:
    manager, registry = fleet()
    manager.declare_dead("a", "", 5.0)
    dead = registry.state("a").dead
    after, restored = fleet()
    after.restore("a", cordoned=True, cordon_reason="disk", paused="tests", dead=dead)
    after.restore("gone", cordoned=True, cordon_reason="", paused=None, dead=None)
    state = restored.state("a")
    assert (state.cordoned, state.cordon_reason, state.paused, state.dead) == (True, "disk", "tests", dead)
    after.uncordon("a")
    assert after.cordon_reason("a") == ""

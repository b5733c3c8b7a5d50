"""ClusterMonitor and HealthChecker: every request posts exactly one event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.health.health_checker import HealthChecker
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    DashboardChecked,
    Event,
    SnapshotFailed,
    SnapshotTaken,
)
from ray_multicluster_scheduler.scheduler.monitor.cluster_monitor import ClusterMonitor
from tests.unit.lifecycle.driver import snapshot


class Cluster:
    """A dashboard, or a link, that answers or raises."""

    def __init__(self, problem: Exception | None = None, *, connected: bool = True) -> None:
        self.problem, self.connected = problem, connected

    async def version(self) -> dict[str, str]:
        self._judge()
        return {"ray_version": "2.60.0"}

    async def snapshot(self, _: float) -> ResourceSnapshot:
        self._judge()
        return snapshot("a", 5.0, 4, source="http" if isinstance(self, Dashboard) else "agent")

    def _judge(self) -> None:
        if self.problem is not None:
            raise self.problem


class Dashboard(Cluster):
    """The same over HTTP."""


class World:
    """One cluster, with or without a link."""

    awaited: float | None = None

    def __init__(self, dashboard: Cluster | None, link: Cluster | None = None) -> None:
        self.received: list[Event] = []
        self._dashboard, self._link = dashboard, link
        plane: Any = self
        self.monitor = ClusterMonitor(plane, plane, SystemClock(), self.received.append)
        self.health = HealthChecker(self.monitor, lambda: ["a"])

    def existing_link(self, _: str) -> Cluster | None:
        return self._link

    async def link(self, _: str) -> Cluster:
        assert self._link is not None
        return self._link

    def return_wait_s(self, _: str) -> float | None:
        return self.awaited

    def has_dashboard(self, _: str) -> bool:
        return self._dashboard is not None

    def client(self, _: str) -> Cluster:
        assert self._dashboard is not None
        return self._dashboard


REFUSED = ClusterConnectionError("connection refused.", cluster="a")


async def test_a_dashboard_that_answers() -> None:
    world = World(Dashboard(), Cluster())
    await world.monitor.check_dashboard("a")
    assert world.received == [DashboardChecked("a", None)]


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [(REFUSED, "connection refused"), (RuntimeError("a defect"), "RuntimeError: a defect")],
)
async def test_a_silent_dashboard_is_reported_although_the_link_is_up(problem: Exception, sentence: str) -> None:
    world = World(Dashboard(problem), Cluster())
    await world.monitor.check_dashboard("a")
    (answer,) = world.received
    assert isinstance(answer, DashboardChecked)
    assert answer.sentence is not None
    assert answer.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("link", "source"),
    [(None, "http"), (Cluster(), "agent"), (Cluster(connected=False), "http"), (Cluster(REFUSED), "http")],
    ids=["no link", "a link", "one that broke", "one that does not answer"],
)
async def test_snapshots_come_from_the_agent_where_there_is_one(link: Cluster | None, source: str) -> None:
    world = World(Dashboard(), link)
    health = await world.health.check("a")
    assert health.snapshot is not None
    assert health.snapshot.source == source
    assert world.received == [SnapshotTaken(health.snapshot)]


@pytest.mark.parametrize(
    ("problem", "code", "permanent"),
    [
        (REFUSED, "CLUSTER_UNREACHABLE", False),
        (ConfigurationError("no dashboard."), "CLUSTER_UNREACHABLE", True),
        (ValueError("odd"), "DEFECT", False),
    ],
)
async def test_a_failed_check_is_an_answer_too(problem: Exception, code: str, permanent: bool) -> None:
    world = World(Dashboard(problem))
    (health,) = await world.health.check_all()
    (answer,) = world.received
    assert isinstance(answer, SnapshotFailed)
    assert (answer.code, answer.permanent) == (code, permanent)
    assert (health.snapshot, health.sentence) == (None, answer.sentence)


@pytest.mark.parametrize(
    ("connected", "awaited", "says", "could_not_be_asked"),
    [
        (True, None, "connection refused", False),
        (False, None, "the link to cluster 'a' is down", True),
        (False, 30.0, "has not reconnected since the restart", True),
    ],
)
async def test_without_a_dashboard_a_link_that_is_down_is_no_failure_of_the_cluster(
    connected: bool, awaited: float | None, says: str, could_not_be_asked: bool
) -> None:
    world = World(None, Cluster(REFUSED, connected=connected))
    world.awaited = awaited
    answer = await world.monitor.refresh("a")
    assert isinstance(answer, SnapshotFailed)
    assert says in answer.sentence
    assert answer.awaited is could_not_be_asked


async def test_concurrent_queries_are_one_request() -> None:
    """Its answer is not the one that the scheduler has requested."""
    world = World(Dashboard(REFUSED))
    answers = await asyncio.gather(*(world.health.check("a") for _ in range(5)))
    assert len(world.received) == 1
    assert {one.sentence for one in answers} == {"connection refused."}
    assert [one.requested for one in world.received if isinstance(one, SnapshotFailed)] == [False]
    await world.health.check("a")
    assert len(world.received) == 2, "who asks later asks anew"


async def test_cancelling_one_caller_does_not_cancel_the_others() -> None:
    world = World(Dashboard())
    impatient, patient = (asyncio.ensure_future(world.health.check("a")) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).snapshot is not None
    assert len(world.received) == 1


@pytest.mark.parametrize(
    ("dashboard", "link", "asked"),
    [(Dashboard(), None, 1), (None, None, 0), (None, Cluster(connected=False), 0), (None, Cluster(), 1)],
    ids=["a dashboard", "nobody", "a link that is down", "a link"],
)
async def test_a_query_starts_nothing(dashboard: Cluster | None, link: Cluster | None, asked: int) -> None:
    world = World(dashboard, link)
    assert len(await world.health.check_all_queryable()) == asked
    assert len(world.received) == asked

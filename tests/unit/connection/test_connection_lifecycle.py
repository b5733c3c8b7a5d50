"""Idle links are closed; busy ones stay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.scheduler.connection.connection_lifecycle import ConnectionLifecycleManager
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from tests.support.eventually import eventually


@dataclass
class IdleLink:
    cluster: str
    idle_s: float


@dataclass
class Pool:
    """As much of a RayClientPool as is looked at: links with an idle time, closed by name."""

    open: dict[str, IdleLink]
    closed: list[tuple[str, str]] = field(default_factory=list)
    breaks: bool = False

    def links(self) -> list[IdleLink]:
        return list(self.open.values())

    async def close_link(self, cluster: str, sentence: str) -> None:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("a defect while closing")
        del self.open[cluster]
        self.closed.append((cluster, sentence))


def pool(**idle: float) -> Any:
    return Pool({name: IdleLink(name, seconds) for name, seconds in idle.items()})


async def test_an_idle_link_is_ended_and_a_busy_one_stays() -> None:
    links = pool(idle=10.0, busy=0.0, fresh=0.05)
    manager = ConnectionLifecycleManager(cast("RayClientPool", links), agent_idle_s=0.2)
    await eventually(lambda: links.closed)
    await asyncio.sleep(0.05)
    await manager.close()
    assert links.closed == [("idle", "it was idle")]
    assert set(links.open) == {"busy", "fresh"}


async def test_a_link_is_ended_once_it_has_been_idle_long_enough() -> None:
    links = pool(a=0.0)
    manager = ConnectionLifecycleManager(cast("RayClientPool", links), agent_idle_s=0.2)
    await asyncio.sleep(0.1)
    assert links.closed == []
    links.open["a"].idle_s = 0.3
    await eventually(lambda: links.closed)
    await manager.close()


async def test_close_ends_the_checks() -> None:
    links = pool(a=10.0)
    manager = ConnectionLifecycleManager(cast("RayClientPool", links), agent_idle_s=0.1)
    await manager.close()
    await asyncio.sleep(0.05)
    assert links.closed == []


async def test_a_link_that_cannot_be_closed_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    links = pool(a=10.0)
    links.breaks = True
    manager = ConnectionLifecycleManager(cast("RayClientPool", links), agent_idle_s=0.1)
    await eventually(lambda: links.closed)
    await manager.close()

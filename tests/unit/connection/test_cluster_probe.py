"""The agent's probe of GCS and raylet."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.scheduler.connection.gateway import cluster_probe
from ray_multicluster_scheduler.scheduler.connection.gateway.cluster_probe import ClusterProbe
from tests.support.mac_cluster import until

NODES = {"nodes": [{"node_id": "n1", "total": {"CPU": 2.0}, "free": {"CPU": 2.0}, "is_head": True}]}


class FakeRaylet:
    def __init__(self) -> None:
        self.stopped, self.over, self.parked = threading.Event(), threading.Event(), threading.Event()
        self.fails = False
        self.asked = 0
        self.published: list[dict[str, Any]] = []

    def probe(self) -> ClusterProbe:
        self.made = ClusterProbe(self.published.append, self._is_busy)
        return self.made

    def _is_busy(self) -> bool:
        if self.over.is_set():
            self.parked.set()
            threading.Event().wait()  # for ever: the probe's thread ends with the process
        return True

    async def async_get_worker_pids(self, timeout_ms: int) -> list[int]:
        assert timeout_ms
        self.asked += 1
        if self.fails:
            raise RuntimeError("deadline exceeded")
        while self.stopped.is_set():
            await asyncio.sleep(0.01)
        return []


@pytest.fixture
def raylet(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRaylet]:
    made = FakeRaylet()
    monkeypatch.setattr(cluster_probe, "_raylet_client", lambda: made)
    monkeypatch.setattr(cluster_probe, "read_nodes", lambda: dict(NODES))
    monkeypatch.setattr(cluster_probe, "BUSY_INTERVAL_S", 0.01)
    monkeypatch.setattr(cluster_probe, "LATE_S", 0.05)
    yield made
    made.over.set()
    assert made.parked.wait(30)
    loop = made.made._raylet._loop
    assert loop is not None
    loop.close()


def test_stopped_raylet_counts_as_silent_head_although_the_gcs_answers(raylet: FakeRaylet) -> None:
    probe, published = raylet.probe(), raylet.published
    until(lambda: len(published) == 1)
    raylet.stopped.set()
    until(lambda: probe.silent_s() > 0.2)
    probe.now()
    time.sleep(0.1)
    assert len(published) == 1, "a snapshot would end the silence"
    raylet.stopped.clear()
    until(lambda: len(published) == 2)
    until(lambda: probe.silent_s() < 0.05)


def test_raylet_that_never_answered_is_not_waited_for(raylet: FakeRaylet) -> None:
    raylet.fails = True
    probe, published = raylet.probe(), raylet.published
    until(lambda: bool(published))
    until(lambda: raylet.asked == 3)
    for _ in range(3):
        time.sleep(0.05)
        assert probe.silent_s() < 0.05
    assert raylet.asked == 3

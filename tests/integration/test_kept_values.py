"""keep="cluster" on real clusters: a large value stays, over restarts of the service, and is lost with its agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler import ResultLostError, UnifiedScheduler
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import agents_of_mac, config_of_mac
from tests.support.running_service import RunningService

SIZE = 30_000_000


@pytest.fixture
def service(fleet: LocalFleet, tmp_path: Path) -> Iterator[RunningService]:
    with RunningService(config_of_mac(fleet, tmp_path), tmp_path / "state") as running:
        yield running
        running.stop()


def blob_bytes(service: RunningService) -> int:
    return sum(file.stat().st_size for file in service.state.rglob("*") if file.is_file())


def test_a_large_value_stays_and_a_small_one_is_returned(fleet: LocalFleet, tmp_path: Path) -> None:
    with UnifiedScheduler(config_of_mac(fleet, tmp_path)) as scheduler:
        large = scheduler.submit_task_async(lambda: b"x" * SIZE, keep="cluster")
        small = scheduler.submit_task_async(lambda: "small", keep="cluster")
        bad = scheduler.submit_task_async(lambda: 1 / 0, keep="cluster")
        assert small.result(60) == "small"
        assert large.result(60) == b"x" * SIZE
        assert large._item.outcome.result.kept > SIZE  # type: ignore[union-attr, operator]  # it is over
        with pytest.raises(ZeroDivisionError):
            bad.result(60)
        length = scheduler.submit_task_async(len, (large,))
        assert length.result(60) == SIZE
        lost = scheduler.submit_task_async(lambda: b"y" * SIZE, keep="cluster")
        assert lost.exception(60) is None
        for agent in agents_of_mac(fleet):
            agent.kill()
        with pytest.raises(ResultLostError, match="was kept in cluster 'mac' and is lost"):
            lost.result()
        assert small.result() == "small"
        assert large.result() == b"x" * SIZE, "it came here as an argument, and stayed"


def test_the_service_does_not_store_it_and_finds_it_after_a_restart(service: RunningService) -> None:
    with UnifiedScheduler(address=service.address, token=service.token) as client:
        large = client.submit_task_async(lambda: b"x" * SIZE, keep="cluster")
        assert large.exception(60) is None
        assert large.result() == b"x" * SIZE
        service.kill()
        assert blob_bytes(service) < SIZE
        service.start()
        assert large.result() == b"x" * SIZE
        assert client.submit_task(len, (large,)) == SIZE
        assert blob_bytes(service) > SIZE, "what others need is kept by the service from then on"
        assert large.attempt == 1

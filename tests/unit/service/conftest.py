"""What tests of a service's actors have in common; a module with fixtures of its own by these names uses those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from tests.unit.client_api.actor_plane import Counter
from tests.unit.service.actor_service import ActorService, ready
from tests.unit.service.http_service import HttpService
from tests.unit.service.request_faults import RequestFaults


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ActorService]:
    with ActorService(tmp_path / "state") as service:
        yield service


@pytest.fixture
def scheduler(service: ActorService | HttpService) -> Iterator[UnifiedScheduler]:
    scheduler = UnifiedScheduler(address=service.address)
    yield scheduler
    scheduler.shutdown()


@pytest.fixture
def actor(scheduler: UnifiedScheduler) -> ActorHandle:
    return ready(scheduler.submit_actor_async(Counter))


@pytest.fixture
def requests(scheduler: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch) -> RequestFaults:
    return RequestFaults(scheduler, monkeypatch)

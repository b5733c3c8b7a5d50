"""keep="cluster" through a service: it knows of the value and has none of it, until it is requested or needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ResultLostError, StoreFullError
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service import store_persistence
from ray_multicluster_scheduler.control_plane.runtime.service.retention import Retention
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.support.fake_link import FakeLink
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import a_task, running

VALUE = pickling.dumps("v" * 10_000)


class KeepingService(HttpService):
    """Whose one cluster keeps what its tasks made."""

    link: FakeLink

    def _listen(self) -> None:
        runtime = self.plane.runtime
        self.link = FakeLink("mac", runtime.collector)
        self.link.values["t1", 1] = VALUE
        runtime.links.existing_link = lambda cluster: self.link  # type: ignore[method-assign]  # a fake
        runtime.links.links = lambda: [self.link]  # type: ignore[method-assign]  # the same
        super()._listen()

    def kept(self, task_id: str) -> None:
        self.submit(task_id, keep="cluster")
        item = self.plane.runtime.item(task_id)
        assert item is not None
        running(item)
        self.plane.end(CallResult(task_id, 1, "succeeded", kept=len(VALUE), kept_by="agent-1"))
        until(item.done)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[KeepingService]:
    with KeepingService(tmp_path / "state", kept_finished=0) as service:
        yield service  # type: ignore[misc]  # what __enter__ returns is itself


def test_it_is_fetched_from_there_before_and_after_a_restart(service: KeepingService) -> None:
    service.kept("t1")
    for _ in range(2):
        assert service.get("/api/v1/items/t1/result") == VALUE
        reported = service.get("/api/v1/items/t1")["outcome"]["result"]
        assert (reported["kept"], reported["kept_by"], "digest" in reported, "payload" in reported) == (
            len(VALUE),
            "agent-1",
            False,
            False,
        )
        service.restart()


def test_one_that_is_gone_is_a_problem_document(service: KeepingService) -> None:
    service.kept("t1")
    service.link.values.clear()
    status, answer = service.ask("GET", "/api/v1/items/t1/result")
    assert (status, answer["error"]) == (409, "ResultLostError")
    assert "is lost: the test has none" in answer["detail"]


def test_a_program_gets_it_each_time_that_it_asks(service: KeepingService) -> None:
    with UnifiedScheduler(address=service.address) as scheduler:
        handle = scheduler.submit_task_async(len, ("abc",), keep="cluster")
        until(lambda: service.plane.placed)
        running(service.plane.runtime.item(handle.id))  # type: ignore[arg-type]  # it is there
        service.link.values[handle.id, 1] = pickling.dumps(3)
        service.plane.end(CallResult(handle.id, 1, "succeeded", kept=2_000_000, kept_by="agent-1"))
        assert handle.result(60) == 3
        service.link.values.clear()
        with pytest.raises(ResultLostError, match="is lost"):
            handle.result(60)


def test_what_another_item_needs_is_the_services_own_from_then_on(service: KeepingService) -> None:
    service.kept("t1")
    taker = service.plane.taken(a_task("t2"), ["result-t1"])
    running(taker)
    assert service.plane.runtime.payload_cache.objects_of("t2") == [("result-t1", VALUE)]
    assert service.link.let_go_of == [("t1", 1)]
    service.restart()
    service.link.values.clear()
    assert service.get("/api/v1/items/t1/result") == VALUE
    assert service.plane.runtime.payload_cache.objects_of("t2") == [("result-t1", VALUE)], "should it be tried again"


def slow(service: KeepingService, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Large values are written when the event is set."""
    put, go = service.plane.store.put_blob, threading.Event()

    def wait_and_put(data: bytes, *, beyond_quota: bool = False) -> str:
        assert go.wait(60)
        return put(data, beyond_quota=beyond_quota)

    monkeypatch.setattr(service.plane.store, "put_blob", wait_and_put)
    return go


def test_its_cluster_has_it_until_the_service_has_it(service: KeepingService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.kept("t1")
    go = slow(service, monkeypatch)
    takers = [service.plane.taken(a_task(name), ["result-t1"]) for name in ("t2", "t3")]
    assert not service.link.let_go_of
    threading.Timer(0.1, go.set).start()
    assert service.get("/api/v1/items/t1/result") == VALUE
    for taker in takers:
        running(taker)
    late = service.plane.taken(a_task("t4"), ["result-t1"])
    running(late)
    assert service.link.let_go_of == [("t1", 1)]


def test_many_at_once_all_get_it(service: KeepingService) -> None:
    service.kept("t1")
    items = service.plane.accept(*[SubmitRequest(a_task(f"x{n}", 0.01), ["result-t1"]) for n in range(200)])
    for item in items:
        assert isinstance(item, Item)
        running(item)


def test_while_there_is_no_room_it_waits(service: KeepingService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_persistence, "_RETRY_S", 0.01)
    service.kept("t1")
    put, tries = service.plane.store.put_blob, []

    def full(data: bytes, *, beyond_quota: bool = False) -> str:
        tries.append(data)
        if len(tries) < 4:
            raise StoreFullError("there is no room")
        return put(data, beyond_quota=beyond_quota)

    monkeypatch.setattr(service.plane.store, "put_blob", full)
    running(service.plane.taken(a_task("t2"), ["result-t1"]))
    assert len(tries) == 4


def test_it_goes_when_other_values_of_its_age_go(service: KeepingService) -> None:
    service.kept("t1")
    runtime = service.plane.runtime
    Retention(
        service.plane.store,
        service.plane.config.settings,
        runtime.clock,
        release_values=runtime.release_values_older_than,
    ).tidy()
    until(lambda: service.link.let_go_of == [("t1", 1)])

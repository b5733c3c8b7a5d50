"""Load over time: a point for each change, kept over a restart, written seldom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.admin_api.metrics.load_series import Point, read, table
from ray_multicluster_scheduler.control_plane.store import Change
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        until(lambda: service.app.state.series._points)
        yield service


def sample(service: HttpService, minutes: float = 0.0) -> None:
    """As the timer does, so many minutes from now."""
    runtime = service.plane.runtime
    runtime.call_and_wait(lambda: service.app.state.series.sample(runtime.clock.now() + 60 * minutes))


def test_load_and_queue_are_published_every_minute(service: HttpService) -> None:
    service.fill()
    sample(service)
    output = service.get("/api/v1/series?hours=0.1")
    assert (output["every_s"], len(output["at"])) == (60, 6)
    assert output["at"][-1] % 60 == 0
    assert (output["queues"]["task"][-1], output["running"][-1]) == (1, 1)
    mac = output["clusters"]["mac"]
    assert (mac["items"][-1], mac["up"][-1], mac["cpu"][-1], mac["gpu"][-1]) == (1, 1, 1.0, None)
    assert output["running"][0] is None
    assert len(service.get("/api/v1/series?hours=24")["at"]) == 24 * 60


@pytest.mark.parametrize("hours", ["0", "-1", "25", "nan", "inf", "many"])
def test_hours_that_are_none(service: HttpService, hours: str) -> None:
    assert service.ask("GET", f"/api/v1/series?hours={hours}")[0] == 422


def test_no_write_without_change(service: HttpService) -> None:
    until(lambda: read(service.plane.store))
    written: list[Change] = []
    write = service.plane.store.write
    service.plane.store.write = lambda change: written.append(change) or write(change)  # type: ignore[method-assign] # counts
    for minute in range(1, 100):
        sample(service, minute)
    assert not written
    assert len(service.app.state.series._points) == 1


def test_it_is_there_after_a_restart_and_the_time_between_is_not_known(service: HttpService) -> None:
    sample(service, -10)  # of an hour that may be another one
    first = int(service.plane.runtime.clock.now()) // 60
    service.fill()
    sample(service)
    until(lambda: read(service.plane.store)[-1].running == 1)
    service.restart()
    until(lambda: service.app.state.series._points and service.app.state.series._points[-1].begins)
    assert service.app.state.series._points[0].minute <= first
    assert service.get("/api/v1/series")["running"][-1] == 1


def test_old_hours_go(service: HttpService) -> None:
    item = service.fill()
    sample(service, 60)
    service.plane.finish(item)
    until(lambda: service.plane.runtime.item("u") is not None)
    sample(service, 26 * 60)
    until(lambda: len(service.plane.store.settings("series/")) <= 2)
    assert len(service.app.state.series._points) <= 2


def test_a_document_that_is_damaged_is_left_out(service: HttpService) -> None:
    until(lambda: read(service.plane.store))
    before = len(read(service.plane.store))
    service.plane.store.write(Change(settings={"series/7": b"nonsense"})).result(60)
    assert len(read(service.plane.store)) == before


def test_a_point_holds_until_the_next_or_until_its_process_ended() -> None:
    points = [
        Point(10, {"task": 1}, 1, {"a": [1, 0, 1, 0.5, None, 0.1]}, True),
        Point(12, {"task": 2}, 2, {}),
        Point(16, {"job": 3}, 3, {}, True),
    ]
    output = table(points, 8, 18)
    assert output["running"] == [None, None, 1, 1, 2, None, None, None, 3, 3, 3]
    assert output["queues"]["job"] == [None, None, 0, 0, 0, None, None, None, 3, 3, 3]
    assert output["clusters"]["a"]["cpu"][:5] == [None, None, 0.5, 0.5, None]
    assert table([], 1, 2)["running"] == [None, None]
    assert table(points, 11, 11)["running"] == [1]

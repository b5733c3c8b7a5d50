"""What a service has run becomes a trace that the simulator takes."""

from __future__ import annotations

import getpass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.control_plane.admin_api.metrics import history_trace as history_trace_module
from ray_multicluster_scheduler.control_plane.admin_api.metrics.history_trace import history_trace
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.store import ItemPage, ItemQuery
from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.simulation import SimulatedFleet, cluster, simulate
from ray_multicluster_scheduler.simulation.workloads.trace import read_trace, trace_text
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import a_task


def test_what_ran_is_in_the_trace_and_what_did_not_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpService(tmp_path / "state") as service:
        service.submit("one", cpus=2, owner="ann", priority=3, tags=("x",))
        service.submit("two")
        service.submit("wide", cpus=1000)  # fails at once: no node is that large
        for name in ("one", "two"):
            item = service.plane.runtime.item(name)
            assert item is not None
            service.plane.finish(item, b"v")
        items = list(chain(*history_trace(service.plane.store)))
        assert [(one.needs, one.owner, one.priority, one.tags) for one in items] == [
            ({"CPU": 2.0}, "ann", 3, ("x",)),
            ({"CPU": 1.0}, getpass.getuser(), 0, ()),  # whose the token is
        ]
        assert items[0].submit_s == 0.0
        path = tmp_path / "trace.csv"
        path.write_bytes(service.get("/api/v1/trace"))
        assert list(read_trace(path)) == items
        assert path.read_text() == trace_text(items)
        monkeypatch.setattr(history_trace_module, "PAGE", 1)  # piece by piece it is the same
        assert service.get("/api/v1/trace").decode() == trace_text(items)


def test_a_name_that_is_no_text_does_not_break_it(tmp_path: Path) -> None:
    """Such names were taken once, and may still be in a store."""
    with HttpService(tmp_path / "state") as service:
        plane = service.plane
        plane.finish(plane.taken(a_task("lone", name="caf\udce9")), b"v")
        assert b"caf\\udce9" in service.get("/api/v1/trace")


def test_however_much_there_is_only_a_page_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_trace_module, "PAGE", 2)
    with HttpService(tmp_path / "state") as service:
        store = service.plane.store
        for number, submitted_at in enumerate([50.0, 20.0, 30.0, 10.0, 40.0]):  # as clocks of programs may say
            service.submit(f"t{number}", submitted_at=submitted_at)
            item = service.plane.runtime.item(f"t{number}")
            assert item is not None
            service.plane.finish(item, b"v")
        service.submit("waits", cpus=0, start_after=5e9, submitted_at=1.0)
        asked: list[int] = []

        def items(wanted: ItemQuery) -> ItemPage:
            page = type(store).items(store, wanted)
            asked.append(len(page.items))
            return page

        monkeypatch.setattr(store, "items", items)
        pages = history_trace(store)
        assert [one.submit_s for one in next(pages)] == [40.0, 10.0]
        assert asked == [2], "the next one is read when it is wanted"
        assert [one.submit_s for page in pages for one in page] == [20.0, 0.0, 30.0]
        lines = service.get("/api/v1/trace").decode().splitlines()
        assert [line.split(",")[0] for line in lines] == ["submit", "40.0", "10.0", "20.0", "0.0", "30.0"]


def test_the_command_writes_it_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    with HttpService(tmp_path / "state") as service:
        service.submit("one")
        item = service.plane.runtime.item("one")
        assert item is not None
        service.plane.finish(item, b"v")
        assert main(["trace", str(path), "--address", service.address]) == 0
        assert "1 item in" in capsys.readouterr().err
        assert len(read_trace(path)) == 1
        assert main(["trace", str(tmp_path / "no" / "such"), "--address", service.address]) == 2
        assert "cannot be written" in capsys.readouterr().err
    assert main(["trace", str(path), "--force", "--address", service.address]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_every_item_ends_in_the_simulation_as_it_ended_here(tmp_path: Path) -> None:
    with HttpService(tmp_path / "state", retry_backoff={"base_s": 0.01}) as service:

        def ends(name: str, attempt: int, *how: Any) -> None:
            until(
                lambda: (
                    (now := service.get(f"/api/v1/items/{name}"))["attempt"] == attempt and now["state"] == "RUNNING"
                )
            )
            service.plane.post(events.AttemptFinished(name, attempt, *how))

        broke = ("failed", FailureClass.USER)
        for name, retries in (("good", 0), ("bad", 0), ("late", 1), ("worse", 1), ("stopped", 0)):
            service.submit(name, retries=retries)
        job = {"id": "job", "kind": "job", "name": "j", "job": {"entrypoint": "false"}, "retries": 1}
        service.post("/api/v1/items", {"task": job})
        ends("good", 1, "succeeded")
        ends("bad", 1, *broke)
        ends("stopped", 1, "cancelled")
        for name in ("late", "worse", "job"):
            ends(name, 1, *broke)
            ends(name, 2, *(("succeeded",) if name == "late" else broke))
        names = ("good", "bad", "late", "worse", "stopped", "job")
        over = ("SUCCEEDED", "FAILED", "CANCELLED")
        until(lambda: all(service.get(f"/api/v1/items/{one}")["state"] in over for one in names))
        items = list(chain(*history_trace(service.plane.store)))
        assert [(one.fails, one.outcome) for one in items] == [
            (0, "succeeded"),
            (1, "failed"),
            (1, "succeeded"),
            (2, "failed"),
            (0, "cancelled"),
            (2, "failed"),
        ]
        fleet = SimulatedFleet((cluster("a", "{CPU:8}"),), Settings(retries=9))
        done = simulate(fleet, items).figures["items"]
        assert (done["succeeded"], done["failed"], done["cancelled"]) == (2, 3, 1)

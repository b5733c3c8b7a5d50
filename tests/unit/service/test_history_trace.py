"""What a service has run becomes a trace that the simulator takes."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.admin_api.history_trace import history_trace
from ray_multicluster_scheduler.control_plane.admin_api.routes import fleet
from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.simulation.trace import read_trace, trace_text
from tests.unit.service.http_service import HttpService


def test_what_ran_is_in_the_trace_and_what_did_not_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpService(tmp_path / "state") as service:
        service.submit("one", cpus=2, owner="ann", priority=3, tags=("x",))
        service.submit("two")
        service.submit("wide", cpus=1000)  # fails at once: no node is that large
        for name in ("one", "two"):
            item = service.plane.runtime.item(name)
            assert item is not None
            service.plane.finish(item, b"v")
        items = history_trace(service.plane.store)
        assert [(one.needs, one.owner, one.priority, one.tags) for one in items] == [
            ({"CPU": 2.0}, "ann", 3, ("x",)),
            ({"CPU": 1.0}, getpass.getuser(), 0, ()),  # whose the token is
        ]
        assert items[0].submit_s == 0.0
        path = tmp_path / "trace.csv"
        path.write_bytes(service.get("/api/v1/trace"))
        assert list(read_trace(path)) == items
        assert path.read_text() == trace_text(items)
        monkeypatch.setattr(fleet, "AT_ONCE", 1)  # piece by piece it is the same
        assert service.get("/api/v1/trace").decode() == trace_text(items)


def test_the_command_writes_it_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    with HttpService(tmp_path / "state") as service:
        service.submit("one")
        item = service.plane.runtime.item("one")
        assert item is not None
        service.plane.finish(item, b"v")
        assert main(["trace", str(path), "--address", service.address]) == 0
        assert "1 items" in capsys.readouterr().err
        assert len(read_trace(path)) == 1
        assert main(["trace", str(tmp_path / "no" / "such"), "--address", service.address]) == 2
        assert "cannot be written" in capsys.readouterr().err
    assert main(["trace", str(path), "--address", service.address]) == 1
    assert "does not answer" in capsys.readouterr().err

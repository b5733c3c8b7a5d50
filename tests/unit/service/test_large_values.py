"""Large values and payloads are sent piece by piece, and never as something that they are not."""

from __future__ import annotations

from http.client import IncompleteRead
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import running


def test_large_values_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpService(tmp_path / "state", kept_finished=0) as service:
        value = bytes(range(256)) * 20_000  # five pieces
        service.submit("t")
        item = service.plane.runtime.item("t")
        assert item is not None
        service.plane.finish(running(item), value)
        digest = digest_of(value)
        del item
        service.restart()
        monkeypatch.setattr(SqliteStore, "blob", lambda *_: pytest.fail("all of it was read"))
        assert service.get("/api/v1/items/t/result") == value
        assert service.get(f"/api/v1/blobs/{digest}") == value
        path = tmp_path / "state" / "blobs" / digest[:2] / digest
        path.write_bytes(value[:-1] + b"!")
        with pytest.raises(IncompleteRead):
            service.get("/api/v1/items/t/result")
        assert service.get("/readyz")["status"] == "ready"

"""A store in a folder of its own, which is opened again as often as a test likes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.control_plane.store import SqliteStore, Store
from tests.unit.store.contract import Open


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def open_store(folder: Path) -> Iterator[Open]:
    opened: list[SqliteStore] = []

    def make(**limits: Any) -> Store:
        opened.append(SqliteStore(folder, **limits))
        return opened[-1]

    yield make
    for store in opened:
        store.close()

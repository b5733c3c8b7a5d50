"""Notices on stderr."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common import notices
from tests.support.eventually import eventually


async def test_items_on_a_silent_cluster_share_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_COLLECT_S", 0.05)
    silent = notices.SilentClusterNotices()
    for item_id in ("t1", "t2", "t2"):
        silent.add("mac", 10.0, "mac has been silent for 5 s", item_id)
    silent.add("linux", 11.0, "linux has been silent for 5 s", "t3")
    await eventually(lambda: not silent._items)
    silent.add("mac", 99.0, "mac has been silent for 5 s", "t1")  # another time
    await eventually(lambda: not silent._items)
    assert capsys.readouterr().err.splitlines() == [
        "rmcs: 2 items on mac: mac has been silent for 5 s",
        "rmcs: 1 item on linux: linux has been silent for 5 s",
        "rmcs: 1 item on mac: mac has been silent for 5 s",
    ]

"""Notices on stderr."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ray_multicluster_scheduler.app.client_api.remote.result_poller import ResultPoller
from ray_multicluster_scheduler.common import notices
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from tests.support.eventually import eventually
from tests.unit.lifecycle.driver import task


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


async def test_a_client_of_a_service_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_COLLECT_S", 0.05)
    item, unused = Item(task("t1")), cast("Any", None)
    poller = ResultPoller(unused, "program", list, {"t1": item}.get, unused, unused, unused)
    silent = {"number": 4, "state": "RUNNING", "attempt": 1, "at": 5.0, "cluster": "mac", "code": "CLUSTER_SUSPECT"}
    for _ in range(2):  # it may be sent again
        await poller._handle_status({"id": "t1", "sentence": "mac has been silent for 5 s", **silent})
    await eventually(lambda: not poller._notices._items)
    assert item.transition is not None
    assert capsys.readouterr().err == "rmcs: 1 item on mac: mac has been silent for 5 s\n"


async def test_items_that_wait_for_a_silent_cluster_are_not_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_COLLECT_S", 0.05)
    unused = cast("Any", None)
    poller = ResultPoller(unused, "program", list, {"t1": Item(task("t1"))}.get, unused, unused, unused)
    waits = {"number": 2, "state": "QUEUED", "attempt": 0, "at": 5.0, "cluster": None, "code": "CLUSTER_SUSPECT"}
    await poller._handle_status({"id": "t1", "sentence": "mac: its link broke less than a second ago", **waits})
    assert not poller._notices._items
    assert capsys.readouterr().err == ""

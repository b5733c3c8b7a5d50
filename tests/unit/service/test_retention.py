"""Retention: what a service forgets, and when; and how much it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import ResultLostError, StoreFullError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.admin_api import serve as serve_module
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import ListenAddress
from ray_multicluster_scheduler.control_plane.runtime.outcome import value_of
from ray_multicluster_scheduler.control_plane.runtime.service.retention import Retention
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from tests.support.links import FakeClock
from tests.support.watched_disk import WatchedDisk
from tests.unit.client_api.control_plane import fleet, until
from tests.unit.service.service_plane import BLOBS, CPUS, ServicePlane, a_task, running

VALUE = pickling.dumps("value")


class Kept:
    """Items that ended one after the other, and the clock that retention looks at."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.plane = ServicePlane(folder, kept_finished=0, **settings)
        for number in range(4):
            self.plane.finish(running(self.plane.taken(a_task(f"t{number}"))), VALUE)
        self.clock = FakeClock(self.plane.runtime.clock.now())
        self.retention = Retention(self.plane.store, self.plane.config.settings, self.clock)

    def tidy(self) -> int:
        self.retention.tidy()
        return self.retention.tidy()  # payloads that were used lately are spared once

    def states(self) -> list[str]:
        found = [self.plane.find_item(f"t{number}") for number in range(4)]
        return ["EXPIRED" if one is None else str(one.state) for one in found]

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self.plane.stop()


def test_items_that_ended_longer_ago_than_keep_history_s_are_forgotten(tmp_path: Path) -> None:
    with Kept(tmp_path / "state", keep_history_s=100.0) as kept:
        kept.clock.time += 90
        kept.tidy()
        assert kept.states() == ["SUCCEEDED"] * 4
        kept.clock.time += 20
        assert kept.retention.tidy() == 4
        assert kept.states() == ["EXPIRED"] * 4


def test_no_more_than_keep_history_items_are_kept_the_newest(tmp_path: Path) -> None:
    with Kept(tmp_path / "state", keep_history_items=1) as kept:
        waits = running(kept.plane.taken(a_task("waits")))
        assert kept.retention.tidy() == 3
        assert kept.states() == ["EXPIRED", "EXPIRED", "EXPIRED", "SUCCEEDED"]
        assert waits.state is TaskState.RUNNING


def test_values_are_forgotten_after_keep_payloads_s_and_their_items_are_not(tmp_path: Path) -> None:
    with Kept(tmp_path / "state", keep_payloads_s=100.0) as kept:
        kept.clock.time += 90
        kept.tidy()
        assert kept.plane.store.blob(digest_of(VALUE)) == VALUE
        kept.clock.time += 20
        kept.tidy()
        assert kept.plane.store.blob(digest_of(VALUE)) is None
        assert kept.states() == ["SUCCEEDED"] * 4


def test_running_items_keep_their_payloads(tmp_path: Path) -> None:
    with Kept(tmp_path / "state", keep_payloads_s=100.0) as kept:
        running(kept.plane.taken(a_task("runs")))
        kept.clock.time += 1000
        for _ in range(3):
            kept.tidy()
        for digest in a_task("runs").payload_digests:
            assert kept.plane.store.blob(digest or "") is not None


def test_what_waits_keeps_the_values_of_others_that_it_needs(tmp_path: Path) -> None:
    with Kept(tmp_path / "state", keep_payloads_s=100.0, keep_history_s=200.0) as kept:
        plane = kept.plane
        running(plane.taken(a_task("busy", CPUS)))
        plane.taken(a_task("waits"), ["result-t1"])
        plane.restart()
        retention = Retention(
            plane.store, plane.config.settings, kept.clock, needed=plane.runtime.stored_arguments.needed
        )
        kept.clock.time += 1000
        for _ in range(3):
            retention.tidy()
        assert kept.states() == ["EXPIRED", "SUCCEEDED", "EXPIRED", "EXPIRED"]
        assert plane.store.blob(digest_of(VALUE)) == VALUE
        plane.restart()
        again = plane.find_item("waits")
        assert again is not None
        assert plane.runtime.payload_cache.objects_of("waits") == [("result-t1", VALUE)]
        plane.runtime.cancel("waits", "it was enough", force=False)
        until(again.done)
        assert plane.runtime.stored_arguments.needed() == set()


def test_a_store_that_is_full_does_not_end_the_thread(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = SqliteStore(tmp_path / "state", vfs=disk.name)
    clock, tidied = FakeClock(), []

    class Watched(Retention):
        def tidy(self) -> int:
            tidied.append(disk.full)
            if disk.full:
                raise StoreFullError("there is no room")
            return super().tidy()

    retention = Watched(store, fleet().settings, clock, every_s=0.001)
    disk.full = True
    retention.start()
    until(lambda: len(tidied) > 2)
    disk.full = False
    until(lambda: not tidied[-1])
    retention.stop()
    store.close()


# ---- limits


def limits(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> SqliteStore:
    """The store as serve() opens it."""
    opened: list[SqliteStore] = []

    class Enough(Exception):
        pass

    def refuse(config: object, store: SqliteStore) -> ServiceRuntime:
        opened.append(store)
        raise Enough

    monkeypatch.setattr(serve_module, "ServiceRuntime", refuse)
    monkeypatch.setattr(SqliteStore, "close", lambda self: None)
    with pytest.raises(Enough):
        serve_module.serve(fleet(**settings), folder, ListenAddress(port=0))
    monkeypatch.undo()
    return opened[0]


def test_one_payload_is_not_larger_than_max_payload_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = limits(monkeypatch, tmp_path / "state", max_payload_bytes=1000)
    store.put_blob(b"x" * 1000)
    with pytest.raises(TaskSubmissionError, match="max_payload_bytes"):
        store.put_blob(b"y" * 1001)
    store.close()


def test_all_payloads_together_are_not_more_than_payload_quota_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = limits(monkeypatch, tmp_path / "state", payload_quota_bytes=1000)
    store.put_blob(b"x" * 600)
    with pytest.raises(StoreFullError, match="payload_quota_bytes"):
        store.put_blob(b"y" * 600)
    store.put_blob(b"z" * 600, beyond_quota=True)  # there is always room for what has been done already
    store.close()


def test_an_item_that_is_above_a_limit_is_refused_by_itself(tmp_path: Path) -> None:
    large = b"x" * 2000
    with ServicePlane(tmp_path / "state", limits={"most_blob_bytes": 1000}) as plane:
        wanted = a_task("large", arguments_digest=digest_of(large))
        refused, item = plane.accept(wanted, a_task("small"), blobs={**BLOBS, digest_of(large): large})
        assert isinstance(refused, TaskSubmissionError)
        running(item)  # type: ignore[arg-type]


def test_a_forgotten_value_says_which_setting_keeps_it_longer(tmp_path: Path) -> None:
    with Kept(tmp_path / "state", keep_payloads_s=1.0) as kept:
        kept.clock.time += 10
        kept.tidy()
        found = kept.plane.find_item("t0")
        assert found is not None
        with pytest.raises(ResultLostError, match="keep_payloads_s"):
            value_of(found.outcome)  # type: ignore[arg-type]

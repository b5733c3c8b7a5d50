"""SqliteStore: the contract, and what is SQLite's own: groups, full and broken disks, files of blobs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.control_plane.store import Change, SqliteStore
from ray_multicluster_scheduler.control_plane.store.database import statements
from tests.support.watched_disk import WatchedDisk
from tests.unit.store.contract import Open, StoreContract, accepted, ended, numbers
from tests.unit.store.contract_queries import QuestionContract

ROOT = Path(__file__).resolve().parents[3]


class TestSqliteStore(StoreContract, QuestionContract):
    pass


# ---- durable before it is acknowledged


def test_each_change_alone_is_synced_before_it_is_acknowledged(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    for number in range(1, 11):
        before = len(disk.synced)
        store.write(accepted(number)).result()
        assert len(disk.synced) > before


def test_concurrent_writes_share_one_sync(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    store.write(accepted(1)).result()
    before = len(disk.synced)
    futures = [store.write(accepted(number)) for number in range(2, 1_002)]
    wait(futures)
    assert all(future.exception() is None for future in futures)
    assert len(numbers(store)) == 1_001
    # The first may go alone; the others are there before it is done.
    assert 1 <= disk.synced[before:].count("wal") <= 10


def test_an_acknowledged_change_outlives_a_process_that_is_killed(folder: Path) -> None:
    """Killed again and again while it writes as fast as it can: all that it said is there, and the rest is whole."""
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from ray_multicluster_scheduler.control_plane.store import SqliteStore
        from tests.unit.store.contract import accepted
        store = SqliteStore(Path(sys.argv[1]))
        number = store.next_number
        print("ready", flush=True)
        while True:
            futures = [store.write(accepted(number + more)) for more in range(7)]
            for future in futures:
                future.result()
            number += 7
            print(number - 1, flush=True)
        """
    )
    output = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lines = [process.stdout.readline() for _ in range(3)]
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        store = SqliteStore(folder)
        there = numbers(store)
        steps = [one.number for one in store.events_after(0, 1_000_000)]
        store.close()
        reported = [int(line) for line in lines] + [int(line) for line in rest[:-1]]  # the last line may be cut short
        assert max(reported) > output
        output = max(reported)
        assert there == list(range(1, len(there) + 1))
        assert len(there) >= output
        assert steps == there


# ---- disks


def test_a_full_disk_is_reported_and_nothing_is_lost_when_there_is_space_again(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    store.write(accepted(1)).result()
    reported: list[str | None] = []
    full, well = threading.Event(), threading.Event()

    def hear(problem: str | None) -> None:
        reported.append(problem)
        (well if problem is None else full).set()

    store.on_write_problem(hear)
    disk.full = True
    futures = [store.write(accepted(number)) for number in range(2, 5)]
    assert full.wait(20)
    assert "There is no room for" in (store.write_problem or "")
    assert not any(future.done() for future in futures)
    assert numbers(store) == [1]  # what is there can be read
    disk.full = False
    assert well.wait(20)
    wait(futures, timeout=20)
    assert numbers(store) == [1, 2, 3, 4]
    assert [one.number for one in store.events_after(0, 10)] == [1, 2, 3, 4]
    assert (store.write_problem, len(reported)) == (None, 2)


def test_a_close_while_the_disk_is_full_reports_what_was_not_written(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    disk.full = True
    futures = [store.write(accepted(1)), store.write(accepted(2))]
    while store.write_problem is None:
        time.sleep(0.01)
    later = store.write(accepted(3))
    store.close()
    for future in (*futures, later):
        with pytest.raises(StoreFullError, match="There is no room for"):
            future.result(timeout=10)
    disk.full = False
    assert numbers(open_store()) == []


def test_after_a_disk_that_did_not_keep_its_word_nothing_is_written_any_more(open_store: Open) -> None:
    """What such a disk has and has not is unknown: only to open it again tells."""
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    store.write(accepted(1)).result()
    disk.broken = True
    with pytest.raises(StoreError, match="cannot be used"):
        store.write(accepted(2)).result()
    disk.broken = False
    with pytest.raises(StoreError, match="cannot be used"):
        store.write(accepted(3)).result()
    assert 1 in numbers(open_store())


def test_a_listener_that_raises_harms_nobody(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)

    def raises(problem: str | None) -> None:
        raise RuntimeError("the loop is closed")

    store.on_write_problem(raises)
    disk.full = True
    futures = [store.write(accepted(1)), store.write(accepted(2))]
    while store.write_problem is None:
        time.sleep(0.01)
    disk.full = False
    assert [future.result(timeout=20) for future in futures] in ([1, 2], [2, 2])
    assert numbers(store) == [1, 2]


def test_while_the_disk_is_full_nobody_waits_to_put_a_blob(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    disk.full = True
    store.write(accepted(1))
    while store.write_problem is None:
        time.sleep(0.01)
    with pytest.raises(StoreFullError, match="cannot be written now"):
        store.put_blob(b"small")
    disk.full = False


def test_a_disk_whose_files_may_not_grow_is_full_and_not_broken(open_store: Open) -> None:
    """As with a quota: the system says so by another name."""
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    store.write(accepted(1)).result()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, limits[1]))
    try:
        future = store.write(accepted(2, name="n" * 200_000))
        while store.write_problem is None:
            time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    future.result(timeout=20)
    assert numbers(store) == [1, 2]


def test_a_lock_holder_of_the_file_is_waited_for(
    folder: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    assert isinstance(store, SqliteStore)
    store._connection.set_busy_timeout(10)
    other = apsw.Connection(str(folder / "rmcs.db"))
    other.execute("BEGIN IMMEDIATE")
    future = store.write(accepted(1))
    while store.write_problem is None:
        time.sleep(0.01)
    assert "Another process is writing" in store.write_problem
    other.execute("ROLLBACK")
    other.close()
    assert future.result(timeout=20) == 1


# ---- many at once


def test_of_two_who_open_it_at_once_one_leads(folder: Path, open_store: Open) -> None:
    open_store().close()
    opened: list[SqliteStore] = []
    threads = [threading.Thread(target=lambda: opened.append(SqliteStore(folder))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.epoch for store in opened}) == 6
    done = []
    for store in opened:
        with suppress(StoreError):
            done.append(store.write(accepted(len(done) + 1)).result())
        store.close()
    assert len(done) == 1


def test_readers_come_and_go_without_leaving_anything_open(open_store: Open) -> None:
    store = open_store()
    store.write(accepted(1)).result()

    def look() -> None:
        assert store.item("t1") is not None

    for _ in range(40):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert len(os.listdir("/dev/fd")) < 60


def test_readers_at_the_close_are_waited_for_or_get_an_error(open_store: Open) -> None:
    store = open_store()
    for number in range(1, 300):
        store.write(accepted(number))
    store.write(Change()).result()
    problems: list[BaseException] = []
    began = threading.Event()

    def look() -> None:
        try:
            while True:
                numbers(store)
                began.set()
        except StoreError:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is
            problems.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert began.wait(20)
    store.close()
    for thread in threads:
        thread.join(20)
    assert problems == []
    with pytest.raises(StoreError, match="closed"):
        store.item("t1")


def test_blobs_that_are_put_while_others_are_dropped_are_all_there(open_store: Open) -> None:
    store = open_store()
    data = [bytes([number]) * size for number in range(4) for size in (100, 40_000)]
    over, began = threading.Event(), threading.Event()

    def drop() -> None:
        """Once per item: a blob is protected from its pin until the second call after it."""
        while not over.is_set():
            began.wait()
            began.clear()
            store.delete_unused_blobs()

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        for number in range(1, 60):
            began.set()
            digest = store.put_blob(data[number % len(data)])
            if store.pin_blobs([digest]):
                continue  # it has to be brought again
            store.write(accepted(number, blobs=(digest,))).result()
            store.write(ended(number, at=1.0)).result()
            assert store.blob(digest) == data[number % len(data)]
            store.expire(2.0, keep=0)
    finally:
        over.set()
        began.set()
        thread.join()


# ---- blobs


def test_large_blobs_are_files_that_are_whole(folder: Path, open_store: Open) -> None:
    store = open_store()
    digest = store.put_blob(bytes(100_000))
    assert [path.name for path in (folder / "blobs").glob("*/*")] == [digest]
    for path in (folder / "blobs", folder):
        assert path.stat().st_mode & 0o077 == 0


def test_files_that_a_dead_process_left_are_swept(folder: Path, open_store: Open) -> None:
    store = open_store()
    assert isinstance(store, SqliteStore)
    kept = store.put_blob(bytes(100_000))
    store.close()
    (folder / "blobs" / kept[:2] / "unfinished.12-3.part").write_bytes(b"half")
    (folder / "blobs" / "ab").mkdir(exist_ok=True)
    (folder / "blobs" / "ab" / "abcd").write_bytes(b"nobody knows me")
    store = open_store()
    assert isinstance(store, SqliteStore)
    assert store.sweep_files() == 2
    assert store.blob(kept) == bytes(100_000)


def test_a_changed_file_is_reported(folder: Path, open_store: Open) -> None:
    store = open_store()
    digest = store.put_blob(bytes(100_000))
    (folder / "blobs" / digest[:2] / digest).write_bytes(b"other")
    with pytest.raises(StoreError, match="is damaged"):
        store.blob(digest)


def test_the_name_of_a_file_that_was_there_is_made_durable_too(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who put it first may not have come so far."""
    store = open_store()
    store.put_blob(bytes(100_000))
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), fsync(descriptor)))
    store.put_blob(bytes(100_000))
    assert synced


def test_a_file_that_was_removed_by_others_is_gone(folder: Path, open_store: Open) -> None:
    store = open_store()
    digest = store.put_blob(bytes(100_000))
    (folder / "blobs" / digest[:2] / digest).unlink()
    assert store.blob(digest) is None


def test_a_disk_that_is_full_of_other_things_refuses_large_blobs(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()

    def no_room(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(StoreFullError, match="There is no room for a payload"):
            store.put_blob(bytes(100_000))
        patch.setattr(os, "fsync", _broken)
        with pytest.raises(StoreError, match="could not be written"):
            store.put_blob(bytes(100_001))
    assert store.put_blob(bytes(100_000))


def _broken(descriptor: int) -> None:
    raise OSError(5, "Input/output error")


def test_a_change_that_writes_nothing_is_acknowledged_as_well(open_store: Open) -> None:
    store = open_store()
    store.write(accepted(1)).result()
    store.write(ended(1, at=2.0)).result()
    assert store.write(Change()).result() == 2


def test_what_was_sent_lately_is_found_without_reading_the_whole_history(open_store: Open, folder: Path) -> None:
    """It is asked at every start, while agents wait."""
    open_store().close()
    sql = statements("read")["last_dispatches_since"]
    plan = list(apsw.Connection(str(folder / "rmcs.db")).execute(f"EXPLAIN QUERY PLAN {sql}", (0.0,)))
    assert [row[3] for row in plan if "USE TEMP" not in row[3]] == [
        "SEARCH items USING INDEX items_over (finished_at>?)",
        "SEARCH steps USING INDEX steps_of_item (item=?)",
    ]

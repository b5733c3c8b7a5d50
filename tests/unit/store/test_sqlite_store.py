"""SqliteStore: the contract, and what is SQLite's own: groups, full and broken disks, damaged and old files."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from ray_multicluster_scheduler.common.digest import digest_of
from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError
from ray_multicluster_scheduler.control_plane.store import Change, Decided, Note, SqliteStore, Step, Store
from ray_multicluster_scheduler.control_plane.store import database as database_module
from ray_multicluster_scheduler.control_plane.store.sql_files import migrations, statements
from tests.support.watched_disk import WatchedDisk
from tests.unit.store.contract import Open, StoreContract, accepted, ended, numbers
from tests.unit.store.contract_questions import QuestionContract

ROOT = Path(__file__).resolve().parents[3]


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


def test_what_comes_together_is_synced_together(open_store: Open) -> None:
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
    said = 0
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
        steps = [one.number for one in store.told_after(0, 1_000_000)]
        store.close()
        told = [int(line) for line in lines] + [int(line) for line in rest[:-1]]  # the last line may be cut short
        assert max(told) > said
        said = max(told)
        assert there == list(range(1, len(there) + 1))
        assert len(there) >= said
        assert steps == there


# ---- disks


def test_a_full_disk_is_told_and_nothing_is_lost_when_there_is_room_again(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    store.write(accepted(1)).result()
    told: list[str | None] = []
    full, well = threading.Event(), threading.Event()

    def hear(trouble: str | None) -> None:
        told.append(trouble)
        (well if trouble is None else full).set()

    store.on_trouble(hear)
    disk.full = True
    futures = [store.write(accepted(number)) for number in range(2, 5)]
    assert full.wait(20)
    assert "There is no room for" in (store.trouble or "")
    assert not any(future.done() for future in futures)
    assert numbers(store) == [1]  # what is there can be read
    disk.full = False
    assert well.wait(20)
    wait(futures, timeout=20)
    assert numbers(store) == [1, 2, 3, 4]
    assert [one.number for one in store.told_after(0, 10)] == [1, 2, 3, 4]
    assert (store.trouble, len(told)) == (None, 2)


def test_who_is_closed_while_the_disk_is_full_says_what_was_not_written(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    disk.full = True
    futures = [store.write(accepted(1)), store.write(accepted(2))]
    while store.trouble is None:
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

    def raises(trouble: str | None) -> None:
        raise RuntimeError("the loop is closed")

    store.on_trouble(raises)
    disk.full = True
    futures = [store.write(accepted(1)), store.write(accepted(2))]
    while store.trouble is None:
        time.sleep(0.01)
    disk.full = False
    assert [future.result(timeout=20) for future in futures] in ([1, 2], [2, 2])
    assert numbers(store) == [1, 2]


def test_while_the_disk_is_full_nobody_waits_to_put_a_blob(open_store: Open) -> None:
    disk = WatchedDisk()
    store = open_store(vfs=disk.name)
    disk.full = True
    store.write(accepted(1))
    while store.trouble is None:
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
        while store.trouble is None:
            time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    future.result(timeout=20)
    assert numbers(store) == [1, 2]


def test_somebody_who_holds_the_file_is_waited_for(
    folder: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    assert isinstance(store, SqliteStore)
    store._connection.set_busy_timeout(10)
    other = apsw.Connection(str(folder / "rmcs.db"))
    other.execute("BEGIN IMMEDIATE")
    future = store.write(accepted(1))
    while store.trouble is None:
        time.sleep(0.01)
    assert "Somebody else is writing" in store.trouble
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


def test_who_reads_while_it_is_closed_is_waited_for_or_told(open_store: Open) -> None:
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
    over = threading.Event()

    def drop() -> None:
        while not over.is_set():
            store.drop_blobs()

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        for number in range(1, 60):
            digest = store.put_blob(data[number % len(data)])
            if store.hold([digest]):
                continue  # it has to be brought again
            store.write(accepted(number, blobs=(digest,))).result()
            store.write(ended(number, at=1.0)).result()
            assert store.blob(digest) == data[number % len(data)]
            store.expire(2.0, keep=0)
    finally:
        over.set()
        thread.join()


# ---- files that are not what they should be


def test_a_file_that_is_no_database_is_never_overwritten(folder: Path) -> None:
    folder.mkdir()
    (folder / "rmcs.db").write_bytes(b"my thesis" * 1_000)
    with pytest.raises(StoreError, match=r"rmcs\.db is damaged"):
        SqliteStore(folder)
    assert (folder / "rmcs.db").read_bytes() == b"my thesis" * 1_000


def test_a_damaged_database_is_told_and_never_replaced_by_a_new_one(folder: Path, open_store: Open) -> None:
    store = open_store()
    for number in range(1, 400):
        store.write(accepted(number))
    store.close()
    path = folder / "rmcs.db"
    data = bytearray(path.read_bytes())
    for page in range(3 * 4096, len(data), 4096):
        data[page : page + 100] = b"\xff" * 100
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged"):
        SqliteStore(folder)
    assert path.read_bytes() == data


def test_a_database_of_another_program_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    other = apsw.Connection(str(folder / "rmcs.db"))
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    with pytest.raises(StoreError, match="of another program"):
        SqliteStore(folder)


def test_a_database_of_a_newer_version_is_left_alone(folder: Path, open_store: Open) -> None:
    open_store().close()
    newer = apsw.Connection(str(folder / "rmcs.db"))
    newer.pragma("user_version", 99)
    newer.close()
    with pytest.raises(StoreError, match="written by a newer version: its format is 99"):
        SqliteStore(folder)


def test_a_folder_that_nobody_may_write_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StoreError, match="The state folder .* cannot be used"):
        SqliteStore(tmp_path / "state")


@pytest.mark.parametrize("left", ["rmcs.db-wal", "rmcs.db.before-0002", "blobs/ab/abcd"])
@pytest.mark.parametrize("how", ["is missing", "is empty"])
def test_a_lost_database_is_never_replaced_by_a_new_one(folder: Path, left: str, how: str) -> None:
    (folder / left).parent.mkdir(parents=True)
    (folder / left).write_bytes(b"something")
    if how == "is empty":
        (folder / "rmcs.db").touch()
        (folder / "rmcs.made").touch()
    with pytest.raises(StoreError, match=f"is damaged: it {how}, and .* beside it shows that there was one"):
        SqliteStore(folder)
    assert (folder / left).read_bytes() == b"something"


@pytest.mark.parametrize("left", ["rmcs.db.before-0002", "blobs/ab/abcd"])
def test_nor_where_more_than_a_first_start_was(folder: Path, left: str) -> None:
    (folder / left).parent.mkdir(parents=True)
    (folder / left).write_bytes(b"something")
    (folder / "rmcs.db").touch()
    with pytest.raises(StoreError, match="is damaged: it is empty"):
        SqliteStore(folder)


@pytest.mark.parametrize("beside", [(), ("rmcs.db-wal",), ("rmcs.db-wal", "rmcs.db-shm"), ("rmcs.db-journal",)])
def test_a_first_start_that_was_killed_is_begun_anew(folder: Path, beside: tuple[str, ...]) -> None:
    """Nothing was accepted before ``rmcs.made`` is there."""
    folder.mkdir()
    (folder / "rmcs.db").touch()
    for name in beside:
        (folder / name).write_bytes(b"the beginning of a first migration")
    SqliteStore(folder).close()
    assert (folder / "rmcs.made").exists()
    SqliteStore(folder).close()


def test_also_where_only_small_payloads_ever_were(folder: Path) -> None:
    SqliteStore(folder).close()
    for left in folder.glob("rmcs.db*"):
        left.unlink()
    with pytest.raises(StoreError, match="it is missing, and what is beside it shows that there was one"):
        SqliteStore(folder)


# ---- migrations


def test_a_store_of_the_first_format_has_its_steps_then_its_decisions_in_one_count(tmp_path: Path) -> None:
    first = database_module.connect(tmp_path / "rmcs.db", writes=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_module, "migrations", lambda: migrations()[:1])
        database_module.bring_up_to_date(first, tmp_path / "rmcs.db")
    first.execute(
        "INSERT INTO items VALUES (1, 't1', 'task', 'n1', 'ann', NULL, 1.0, '{}', 'QUEUED', 1, 'a', 7, 0, NULL, 1,"
        " '{}', 3)"
    )
    for number in (1, 2, 3):
        first.execute("INSERT INTO steps VALUES (?, 1, ?, 'QUEUED', 0, 5.0, 'X', 'waits', NULL, 3)", (number, number))
    for number in (1, 2):
        first.execute("INSERT INTO decisions VALUES (?, 1, ?, 6.0, 'a', '{}', 3)", (number, number))
    first.execute("UPDATE leader SET epoch = 3, next_fence = 8, last_number = 1, last_step = 3, last_decision = 2")
    first.close()
    store = SqliteStore(tmp_path)
    told = store.told_after(0, 10)
    assert [(one.number, type(one.told), one.owner) for one in told] == [
        (1, Step, "ann"),
        (2, Step, "ann"),
        (3, Step, "ann"),
        (4, Decided, "ann"),
        (5, Decided, "ann"),
    ]
    assert [one.attempt for one in store.decisions("t1")] == [1, 2]
    before = store.item("t1")
    assert before is not None
    assert before.new.repeats is None
    assert (store.last_told, store.next_fence, store.next_number) == (5, 8, 2)
    assert (tmp_path / "rmcs.db.before-0002").exists()
    assert store.write(Change(told=[Note("action", "x", 9.0, None, b"{}")])).result() == 6
    store.close()


def test_payloads_of_before_anybody_was_asked_who_put_them_are_those_of_whose_items_have_them(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_module, "migrations", lambda: migrations()[:4])
        folder.mkdir()
        old = database_module.connect(folder / "rmcs.db", writes=True)
        database_module.bring_up_to_date(old, folder / "rmcs.db")
    digest = digest_of(b"code")
    old.execute("INSERT INTO blobs (digest, bytes, data) VALUES (?, 4, 'code')", (digest,))
    old.execute(
        "INSERT INTO items VALUES (1, 't1', 'task', 'n1', 'ann', NULL, 1.0, '{}', 'QUEUED', 1, 'a', 7, 0, NULL, 1,"
        " '{}', 3, NULL)"
    )
    old.execute("INSERT INTO payloads VALUES (1, 0, ?)", (digest,))
    old.close()
    store = SqliteStore(folder)
    assert (folder / "rmcs.db.before-0005").exists()
    assert [store.names_blob(user, digest) for user in ("ann", "bob")] == [True, False]
    assert store.put_blob(b"code", user="bob") == digest
    assert store.names_blob("bob", digest)
    store.close()


def test_migrations_are_numbered_from_one_without_gaps() -> None:
    assert [number for number, _, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_an_old_file_is_brought_up_to_date_after_a_backup(
    folder: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.write(accepted(1)).result()
    store.close()
    later = [*migrations(), (len(migrations()) + 1, "colour", "ALTER TABLE items ADD COLUMN colour TEXT DEFAULT 'red'")]
    monkeypatch.setattr(database_module, "migrations", lambda: later)
    store = open_store()
    assert numbers(store) == [1]
    store.close()
    now = apsw.Connection(str(folder / "rmcs.db"))
    assert list(now.execute("SELECT id, colour FROM items")) == [("t1", "red")]
    assert now.pragma("user_version") == len(later)
    now.close()
    backup = apsw.Connection(str(folder / f"rmcs.db.before-{len(later):04}"))
    assert list(backup.execute("SELECT id FROM items")) == [("t1",)]
    assert backup.pragma("user_version") == len(later) - 1
    backup.close()


def test_a_migration_that_fails_changes_nothing(
    folder: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.write(accepted(1)).result()
    store.close()
    broken = (len(migrations()) + 1, "broken", "ALTER TABLE items ADD COLUMN colour TEXT; SELECT thing FROM nowhere")
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "migrations", lambda: [*migrations(), broken])
        with pytest.raises(StoreError, match="nowhere"):
            SqliteStore(folder)
    store = open_store()
    assert numbers(store) == [1]
    store.write(accepted(2)).result()


def test_every_statement_is_valid_for_the_newest_format(open_store: Open, folder: Path) -> None:
    open_store().close()
    connection = apsw.Connection(str(folder / "rmcs.db"))
    names = [(file, name) for file in ("read", "write", "retention") for name in statements(file)]
    names = [(file, name) for file, name in names if not name.startswith("items_")]  # they are parts of one
    assert len(names) > 30
    for file, name in names:
        connection.execute(f"EXPLAIN {statements(file)[name]}", _anything(statements(file)[name]))
    connection.close()


def _anything(statement: str) -> Any:
    names = re.findall(r":([a-z_]+)", statement)
    numbered = {int(one) for one in re.findall(r"\?(\d+)", statement)}
    return dict.fromkeys(names) if names else [None] * (max(numbered) if numbered else statement.count("?"))


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


def test_a_file_that_somebody_changed_is_told(folder: Path, open_store: Open) -> None:
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


def test_a_file_that_somebody_removed_is_gone(folder: Path, open_store: Open) -> None:
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

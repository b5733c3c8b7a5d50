"""Files of a SqliteStore that are damaged, lost, another user's, newer or older than this program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.control_plane.store import Change, OperationRecord, SqliteStore, Step, StoredDecision
from ray_multicluster_scheduler.control_plane.store import database as database_module
from ray_multicluster_scheduler.control_plane.store.database import migrations, statements
from tests.unit.store.contract import Open, accepted, numbers

# ---- files that are not what they should be


def test_a_file_that_is_no_database_is_never_overwritten(folder: Path) -> None:
    folder.mkdir()
    (folder / "rmcs.db").write_bytes(b"my thesis" * 1_000)
    with pytest.raises(StoreError, match=r"rmcs\.db is damaged"):
        SqliteStore(folder)
    assert (folder / "rmcs.db").read_bytes() == b"my thesis" * 1_000


def test_a_damaged_database_is_reported_and_never_replaced(folder: Path, open_store: Open) -> None:
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


def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
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
    with pytest.raises(StoreError, match=f"is damaged: it {how}, but .* show that there was one"):
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
    with pytest.raises(StoreError, match="it is missing, but files in the same folder show that there was one"):
        SqliteStore(folder)


# ---- migrations


def test_a_store_of_the_first_format_has_its_steps_then_its_decisions_in_one_count(tmp_path: Path) -> None:
    first = database_module.connect(tmp_path / "rmcs.db", writes=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_module, "migrations", lambda: migrations()[:1])
        database_module.migrate(first, tmp_path / "rmcs.db")
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
    reported = store.events_after(0, 10)
    assert [(one.number, type(one.entry), one.owner) for one in reported] == [
        (1, Step, "ann"),
        (2, Step, "ann"),
        (3, Step, "ann"),
        (4, StoredDecision, "ann"),
        (5, StoredDecision, "ann"),
    ]
    assert [one.attempt for one in store.decisions("t1")] == [1, 2]
    before = store.item("t1")
    assert before is not None
    assert before.new.repeats is None
    assert (store.last_event_number, store.next_fence, store.next_number) == (5, 8, 2)
    assert (tmp_path / "rmcs.db.before-0002").exists()
    assert store.write(Change(entries=[OperationRecord("action", "x", 9.0, None, b"{}")])).result() == 6
    store.close()


def test_payload_without_owner_belongs_to_owners_of_its_items(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_module, "migrations", lambda: migrations()[:4])
        folder.mkdir()
        old = database_module.connect(folder / "rmcs.db", writes=True)
        database_module.migrate(old, folder / "rmcs.db")
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
    assert [store.owns_blob(user, digest) for user in ("ann", "bob")] == [True, False]
    assert store.put_blob(b"code", user="bob") == digest
    assert store.owns_blob("bob", digest)
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

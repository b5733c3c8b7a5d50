"""Tokens: made, kept as hashes, expiring, revoked at once; the file that a first start makes."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    NotAllowedError,
    ServiceUnavailableError,
    StoreFullError,
    UnknownItemError,
)
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller, Role
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import (
    TokenStore,
    ensure_first_token,
    roles_of,
)
from ray_multicluster_scheduler.control_plane.store import Change, SqliteStore
from ray_multicluster_scheduler.control_plane.store.private_file import read_private, write_private


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "state")
    yield store
    store.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_lets_its_user_in_also_after_a_restart(store: SqliteStore) -> None:
    about, text = TokenStore(store).create("alice", [Role.SUBMITTER, Role.VIEWER], "her laptop")
    meant = Caller("alice", frozenset({Role.SUBMITTER, Role.VIEWER}), about["id"])
    later = TokenStore(store)
    assert later.check(text) == meant
    assert later.list() == [about]
    assert about["roles"] == ["submitter", "viewer"]
    assert text.startswith(f"rmcs_{about['id']}_")
    assert len(text.rpartition("_")[2]) * 4 == 256


def test_only_a_hash_is_written(store: SqliteStore, tmp_path: Path) -> None:
    _, text = TokenStore(store).create("alice", [Role.VIEWER])
    secret = text.rpartition("_")[2]
    store.close()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert secret.encode() not in kept
    assert hashlib.sha256(text.encode()).hexdigest().encode() in kept


def test_invalid_tokens_are_rejected(store: SqliteStore) -> None:
    book = TokenStore(store)
    about, text = book.create("alice", [Role.VIEWER])
    wrong = ["", "rmcs", "rmcs_", "rmcs_x_y", f"rmcs_{about['id']}_", text[:-1], text + "0", text.upper(), f"{text} "]
    for one in (*wrong, f"rmcs_{about['id']}_{'0' * 64}", "\udcff", text.replace("rmcs", "rmca")):
        assert book.check(one) is None


def test_it_expires(store: SqliteStore) -> None:
    clock = Clock()
    book = TokenStore(store, clock)
    about, text = book.create("alice", [Role.VIEWER], expires_at=1010.0)
    assert isinstance(book.check(text), Caller)
    assert book.is_valid(about["id"])
    clock.now = 1010.0
    assert book.check(text) is None
    assert not book.is_valid(about["id"])
    assert book.list()[0]["expired"]


def test_it_is_revoked_at_once_and_for_good(store: SqliteStore) -> None:
    book, received = TokenStore(store), list[str]()
    stop = book.on_revoked(received.append)
    about, text = book.create("alice", [Role.VIEWER])
    other, _ = book.create("alice", [Role.VIEWER])
    book.revoke(about["id"])
    assert book.check(text) is None
    assert not book.is_valid(about["id"])
    assert TokenStore(store).check(text) is None
    stop()
    book.revoke(other["id"])
    assert received == [about["id"]]
    with pytest.raises(UnknownItemError, match="no token"):
        book.revoke(about["id"])


def test_the_last_admin_is_only_revoked_by_force(store: SqliteStore) -> None:
    clock = Clock()
    book = TokenStore(store, clock)
    first, _ = book.create("alice", [Role.ADMIN])
    second, _ = book.create("bob", [Role.ADMIN, Role.VIEWER], expires_at=2000.0)
    book.create("carol", [Role.OPERATOR])
    clock.now = 3000.0  # the second one does not count any more
    with pytest.raises(NotAllowedError, match="last token of an admin"):
        book.revoke(first["id"])
    book.revoke(second["id"])
    book.revoke(first["id"], force=True)


@pytest.mark.parametrize(
    ("user", "roles", "note", "expires_at"),
    [
        ("", ["viewer"], "", None),
        ("a\nb", ["viewer"], "", None),
        ("x" * 300, ["viewer"], "", None),
        ("a", [], "", None),
        ("a", ["viewer"], "x" * 300, None),
        ("a", ["viewer"], "a\x00", None),
        ("a", ["viewer"], "", 1.0),
        ("a", ["viewer"], "", float("nan")),
    ],
)
def test_invalid_token_requests_are_rejected(
    store: SqliteStore, user: str, roles: list[str], note: str, expires_at: float | None
) -> None:
    book = TokenStore(store)
    with pytest.raises(ConfigurationError):
        book.create(user, roles_of(roles), note, expires_at)
    assert book.list() == []


def test_a_role_that_there_is_not() -> None:
    with pytest.raises(ConfigurationError, match="viewer, submitter, operator, admin"):
        roles_of(["root"])


def test_one_that_cannot_be_read_does_not_stop_the_others(store: SqliteStore) -> None:
    _, text = TokenStore(store).create("alice", [Role.VIEWER])
    for name, output in {"a": b"nonsense", "b": b"{}", "c": b'{"user": 5, "roles": 7}'}.items():
        store.write(Change(settings={f"token/{name}": output})).result(60)
    book = TokenStore(store)
    assert len(book.list()) == 1
    assert isinstance(book.check(text), Caller)


def test_a_check_costs_microseconds(store: SqliteStore) -> None:
    book = TokenStore(store)
    for _ in range(50):
        _, text = book.create("alice", [Role.SUBMITTER])
    best = min(_time_of(book, text) for _ in range(50))  # short ones: others want the processor, too
    assert best < 20e-6


def _time_of(book: TokenStore, text: str) -> float:
    began = time.perf_counter()
    for _ in range(100):
        book.check(text)
    return (time.perf_counter() - began) / 100


# ---- the first one


def test_a_first_start_makes_one_and_the_next_finds_it(store: SqliteStore, tmp_path: Path) -> None:
    path, book = tmp_path / "state" / "token", TokenStore(store)
    assert "has a token for you" in (ensure_first_token(book, path.parent, "me") or "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = read_private(path)
    found = book.check(text)
    assert isinstance(found, Caller)
    assert (found.user, found.roles) == ("me", frozenset(Role))
    assert ensure_first_token(TokenStore(store), path.parent, "me") is None
    assert read_private(path) == text


def test_one_that_was_lost_is_made_anew_and_lets_nobody_in_any_more(store: SqliteStore, tmp_path: Path) -> None:
    path, book = tmp_path / "state" / "token", TokenStore(store)
    ensure_first_token(book, path.parent, "me")
    before = read_private(path)
    path.unlink()
    assert "was lost" in (ensure_first_token(book, path.parent, "me") or "")
    assert book.check(before) is None
    assert isinstance(book.check(read_private(path)), Caller)
    assert len(book.list()) == 1


def test_one_that_was_revoked_is_made_anew(store: SqliteStore, tmp_path: Path) -> None:
    path, book = tmp_path / "state" / "token", TokenStore(store)
    ensure_first_token(book, path.parent, "me")
    book.revoke(book.list()[0]["id"], force=True)
    assert "was revoked" in (ensure_first_token(book, path.parent, "me") or "")
    assert isinstance(book.check(read_private(path)), Caller)


def test_a_file_that_others_can_read_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    path, book = tmp_path / "state" / "token", TokenStore(store)
    ensure_first_token(book, path.parent, "me")
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match=r"is readable by other users.*chmod 600"):
        ensure_first_token(book, path.parent, "me")


def test_a_folder_that_cannot_be_written_leaves_no_token_behind(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ray_multicluster_scheduler.control_plane.admin_api.access.tokens.write_private", no_room)
    book = TokenStore(store)
    with pytest.raises(ConfigurationError, match="No space left"):
        ensure_first_token(book, tmp_path, "me")
    assert book.list() == []


def test_private_files_are_whole_and_unreadable_for_others(tmp_path: Path) -> None:
    path = tmp_path / "one"
    before = os.umask(0)
    try:
        write_private(path, "first")
        write_private(path, "second")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_private(path) == "second"
    assert [one.name for one in tmp_path.iterdir()] == ["one"]
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "nowhere")
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(ConfigurationError, match="is empty"):
        read_private(tmp_path / "empty")
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        read_private(tmp_path)


class Full:
    """A store that has no room until asked."""

    def __init__(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, commit = True, store._writer._commit

        def refuse(change: Change) -> int:
            if self.full:
                raise StoreFullError("There is no room.")
            return commit(change)

        monkeypatch.setattr(store._writer, "_commit", refuse)


def test_a_revocation_that_cannot_be_written_holds_and_is_written_when_there_is_room(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = TokenStore(store)
    about, text = book.create("eve", [Role.SUBMITTER])
    disk = Full(store, monkeypatch)
    for _ in range(2):
        with pytest.raises(ServiceUnavailableError, match="cannot be written now"):
            book.revoke(about["id"])
        assert book.check(text) is None
    with pytest.raises(ServiceUnavailableError, match="cannot be written"):
        book.create("adam", [Role.SUBMITTER])
    disk.full = False
    assert book.revoke(about["id"])["id"] == about["id"], "it is repeated, and now it is written"
    assert TokenStore(store).check(text) is None
    with pytest.raises(UnknownItemError):
        book.revoke(about["id"])


def test_an_eviction_does_not_wait_for_the_disk(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    book = TokenStore(store)
    (one, _), (other, text) = book.create("eve", [Role.VIEWER]), book.create("adam", [Role.VIEWER])
    disk = Full(store, monkeypatch)
    writing = [book.begin_revoke(token["id"])[1] for token in (one, other)]
    assert book.check(text) is None
    assert not any(future.done() for future in writing)
    disk.full = False
    assert [future.exception(10) for future in writing] == [None, None]
    assert TokenStore(store).list() == []

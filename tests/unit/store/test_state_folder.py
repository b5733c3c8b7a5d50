"""StateFolder: one control plane at a time, whatever becomes of the one before."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.store import state_folder
from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder, holder, killed_holder

ROOT = Path(__file__).resolve().parents[3]


def test_the_second_one_learns_who_has_it(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as first:
        assert holder(first.path) == {"pid": os.getpid()}
        with pytest.raises(ConfigurationError, match=rf"control plane \(process {os.getpid()}\) uses"):
            StateFolder(first.path)
        first.announce(address="http://127.0.0.1:8123")
        with pytest.raises(ConfigurationError, match=rf"\(process {os.getpid()}, http://127.0.0.1:8123\) uses"):
            StateFolder(first.path)
        assert holder(first.path) == {"pid": os.getpid(), "address": "http://127.0.0.1:8123"}
    assert holder(first.path) is None
    first.release()
    with StateFolder(first.path):
        assert holder(first.path) == {"pid": os.getpid()}


def test_one_that_was_killed_leaves_it_to_the_next(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; "
        "from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder; "
        "folder = StateFolder(Path(sys.argv[1])); print('has it', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"has it\n"
    with pytest.raises(ConfigurationError, match=f"process {process.pid}"):
        StateFolder(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert holder(tmp_path) is None
    dead = killed_holder(tmp_path)
    assert dead is not None
    assert (dead.pid, dead.address) == (process.pid, None)
    assert dead.seen_at == (tmp_path / "server.json").stat().st_mtime
    (tmp_path / "rmcs.db-wal").touch()
    os.utime(tmp_path / "rmcs.db-wal", (dead.seen_at + 60, dead.seen_at + 60))
    assert killed_holder(tmp_path) == dead._replace(seen_at=dead.seen_at + 60)
    with StateFolder(tmp_path):
        assert killed_holder(tmp_path) is None
    assert killed_holder(tmp_path) is None


def test_nobody_has_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert holder(tmp_path / "nowhere") is None
    assert killed_holder(tmp_path / "nowhere") is None


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"pid": 999999999, "address": "http://of-one-that-was-killed"}'])
def test_one_that_has_not_announced_itself(tmp_path: Path, text: bytes) -> None:
    folder = StateFolder(tmp_path)
    (tmp_path / "server.json").write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"control plane \(another process\) uses"):
        StateFolder(tmp_path)
    folder.release()


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="The state folder .* cannot be used"):
        StateFolder(tmp_path / "file")


def test_a_reader_locks_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "_PROBE_WAIT_S", 60.0)
    StateFolder(tmp_path).release()
    file = os.open(tmp_path / "server.json", os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)  # as holder() does, for a moment
        threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with StateFolder(tmp_path):
            assert holder(tmp_path) == {"pid": os.getpid()}
    finally:
        os.close(file)


def test_the_holder_can_be_read_at_any_moment(tmp_path: Path) -> None:
    """Else `rmcs down` takes a service for stopped that only says that it drains."""
    with StateFolder(tmp_path / "state") as folder:
        over = threading.Event()

        def tell_again_and_again() -> None:
            while not over.is_set():
                folder.announce(address="http://127.0.0.1:8123", draining=True)
                folder.announce(address="http://127.0.0.1:8123")

        teller = threading.Thread(target=tell_again_and_again)
        teller.start()
        try:
            seen = [holder(folder.path) for _ in range(3000)]
        finally:
            over.set()
            teller.join()
        assert {None if one is None else one.get("pid") for one in seen} == {os.getpid()}
        assert holder(folder.path) == {"pid": os.getpid(), "address": "http://127.0.0.1:8123"}

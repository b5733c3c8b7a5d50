"""StateFolder: one control plane at a time has a folder; whoever comes second is told who has it."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeGuard

from ray_multicluster_scheduler.common.exception import ConfigurationError

DATABASE = "rmcs.db"
_LOCK = "server.json"
_STOP = "stop.json"
_LOOK_S = 1.0


class Stop(NamedTuple):
    """Wait ``drain_s`` for what is not over first, if it is not None. It may take ``away_s`` until the next start."""

    drain_s: float | None = None
    away_s: float = 0.0


class Killed(NamedTuple):
    """One that had a folder until its process was killed, or the machine went down. ``seen_at`` is the last moment of
    which a file tells."""

    pid: int
    address: str | None
    seen_at: float


class StateFolder:
    """Taken from when it is made until :meth:`leave`, or the end of the process, however that comes.

    The system keeps the lock, not a file that could stay behind; the file only says who holds it.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError if somebody has it, or it cannot be used."""
        from ray_multicluster_scheduler.control_plane.store.blob_files import make_folder  # noqa: PLC0415 - not to look

        self.path = path
        try:
            make_folder(path)
            self._file = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        if not self._lock():
            os.close(self._file)
            raise _taken(path) from None
        (path / _STOP).unlink(missing_ok=True)  # said to one before us, who may have had the same number
        try:
            self.tell()
        except OSError as error:  # of a full disk, say
            os.close(self._file)
            raise _unusable(path, error) from error

    def _lock(self) -> bool:
        """Whoever only looks who has it holds it for a moment, too, and says nothing of itself."""
        deadline = time.monotonic() + _LOOK_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _read(self._file) or time.monotonic() > deadline:
                    return False
                time.sleep(0.01)  # nobody tells of the end of a lock
            else:
                return True

    def tell(self, **about: Any) -> None:
        """What others may want to know of who has it, such as its address. They may read it at any moment: what was
        longer before is filled up with spaces, so that there is never nothing to read."""
        text = json.dumps({"pid": os.getpid(), **about}).encode()
        os.pwrite(self._file, text.ljust(os.fstat(self._file).st_size), 0)

    def how_to_stop(self) -> Stop:
        """What whoever stops us wants; told once."""
        path = self.path / _STOP
        try:
            said = json.loads(path.read_bytes())
            path.unlink()
        except (OSError, ValueError):
            return Stop()
        told = said if isinstance(said, dict) and said.get("pid") == os.getpid() else {}
        drain, away = told.get("drain_s"), told.get("away_s")
        return Stop(
            float(drain) if _is_time(drain) else None,
            float(away) if _is_time(away) else 0.0,
        )

    def leave(self) -> None:
        """Whoever wants it may have it. Idempotent."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def say_how_to_stop(path: Path, pid: int, how: Stop) -> None:
    """To the process that has this folder, before it is told to stop. Raises OSError."""
    draft = path / f"{_STOP}.{os.getpid()}"
    draft.write_text(json.dumps({"pid": pid, **how._asdict()}))
    draft.replace(path / _STOP)


def holder(path: Path) -> dict[str, Any] | None:
    """What the control plane that has this folder says of itself; None if none has it."""
    try:
        file = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(file)
    finally:
        os.close(file)
    return None


def killed(path: Path) -> Killed | None:
    """Whoever had this folder last, if that one did not leave it; None if it did, or somebody has it."""
    try:
        file = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        said = _said(file)
    except BlockingIOError:
        return None
    finally:
        os.close(file)
    if not isinstance(said.get("pid"), int):
        return None
    seen_at = max(_written_at(path / name) for name in (_LOCK, DATABASE, f"{DATABASE}-wal"))
    return Killed(said["pid"], said.get("address"), seen_at)


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it is not there
        return 0.0


def _read(file: int) -> dict[str, Any]:
    said = _said(file)
    return said if _lives(said.get("pid")) else {}  # else it is what one that was killed said of itself


def _said(file: int) -> dict[str, Any]:
    try:
        said = json.loads(os.pread(file, 65536, 0) or b"{}")
    except ValueError:  # it is being written just now
        return {}
    return said if isinstance(said, dict) else {}


def _lives(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The state folder {path} cannot be used: {error.strerror}.",
        next_step="give another one with --state or RMCS_HOME",
    )


def _taken(path: Path) -> ConfigurationError:
    said = holder(path) or {}
    who = f"process {said['pid']}" if "pid" in said else "another process"
    where = f", {said['address']}" if "address" in said else ""
    return ConfigurationError(
        f"A control plane ({who}{where}) has the state folder {path} already.",
        next_step="use that one (RMCS_ADDRESS), end it with `rmcs down`, or give another folder",
    )

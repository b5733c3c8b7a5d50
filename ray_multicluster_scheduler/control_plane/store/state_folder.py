"""StateFolder: a lock, so that one control plane at a time uses a folder; its file has the address of the holder."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeGuard

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.process import is_alive
from ray_multicluster_scheduler.control_plane.store.private_file import make_folder

DATABASE = "rmcs.db"
_LOCK = "server.json"
_STOP = "stop.json"
_PROBE_WAIT_S = 1.0


class StopRequest(NamedTuple):
    """How to stop: wait up to ``drain_s`` for unfinished items, if given; the next start may take ``away_s``."""

    drain_s: float | None = None
    away_s: float = 0.0


class KilledHolder(NamedTuple):
    """A control plane that was killed, or whose machine went down. ``seen_at``: the last time it wrote a file."""

    pid: int
    address: str | None
    seen_at: float


class StateFolder:
    """Holds the lock until :meth:`release`, or until the process ends in any way. The operating system keeps the lock;
    the content of the file only describes the holder."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError if another process holds the lock, or the folder cannot be used."""
        self.path = path
        try:
            make_folder(path)
            self._file = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        if not self._lock():
            os.close(self._file)
            raise _taken(path) from None
        (path / _STOP).unlink(missing_ok=True)  # meant for an earlier process, which may have had the same id
        try:
            self.announce()
        except OSError as error:  # a full disk, say
            os.close(self._file)
            raise _unusable(path, error) from error

    def _lock(self) -> bool:
        """:func:`holder` also takes the lock for a moment, without writing to the file."""
        deadline = time.monotonic() + _PROBE_WAIT_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _if_alive(_read(self._file)) or time.monotonic() > deadline:
                    return False
                time.sleep(0.01)  # there is no notification of a released lock
            else:
                return True

    def announce(self, **about: Any) -> None:
        """Publish facts about the holder, such as its address. They can be read at any moment, so the file is never
        truncated: a shorter text is padded with spaces."""
        text = json.dumps({"pid": os.getpid(), **about}).encode()
        os.pwrite(self._file, text.ljust(os.fstat(self._file).st_size), 0)

    def stop_request(self) -> StopRequest:
        """Take the request that :func:`request_stop` left for this process."""
        path = self.path / _STOP
        try:
            document = json.loads(path.read_bytes())
            path.unlink()
        except (OSError, ValueError):
            return StopRequest()
        ours = document if isinstance(document, dict) and document.get("pid") == os.getpid() else {}
        drain, away = ours.get("drain_s"), ours.get("away_s")
        return StopRequest(float(drain) if _is_duration(drain) else None, float(away) if _is_duration(away) else 0.0)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _is_duration(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def request_stop(path: Path, pid: int, request: StopRequest) -> None:
    """Leave a request for the process that holds this folder, before it gets a signal. Raises OSError."""
    draft = path / f"{_STOP}.{os.getpid()}"
    draft.write_text(json.dumps({"pid": pid, **request._asdict()}))
    draft.replace(path / _STOP)


def holder(path: Path) -> dict[str, Any] | None:
    """What the control plane that holds this folder has announced; None if there is none."""
    is_held, announced = _probe(path)
    return _if_alive(announced) if is_held else None


def killed_holder(path: Path) -> KilledHolder | None:
    """The last holder of this folder if it did not release the lock; None if it did, or the lock is held."""
    is_held, announced = _probe(path)
    if is_held or not isinstance(announced.get("pid"), int):
        return None
    seen_at = max(_modified_at(path / name) for name in (_LOCK, DATABASE, f"{DATABASE}-wal"))
    return KilledHolder(announced["pid"], announced.get("address"), seen_at)


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _probe(path: Path) -> tuple[bool, dict[str, Any]]:
    """Whether the lock of this folder is held, and what its file announces; (False, {}) if it cannot be opened."""
    try:
        file = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False, {}
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False, _read(file)
    except BlockingIOError:
        return True, _read(file)
    finally:
        os.close(file)


def _if_alive(announced: dict[str, Any]) -> dict[str, Any]:
    pid = announced.get("pid")
    return announced if isinstance(pid, int) and pid > 0 and is_alive(pid) else {}  # else left by one that was killed


def _read(file: int) -> dict[str, Any]:
    try:
        document = json.loads(os.pread(file, 65536, 0) or b"{}")
    except ValueError:  # it is being written just now
        return {}
    return document if isinstance(document, dict) else {}


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The state folder {path} cannot be used: {error.strerror}.",
        next_step="give another one with --state or RMCS_HOME",
    )


def _taken(path: Path) -> ConfigurationError:
    announced = holder(path) or {}
    who = f"process {announced['pid']}" if "pid" in announced else "another process"
    where = f", {announced['address']}" if "address" in announced else ""
    return ConfigurationError(
        f"Another control plane ({who}{where}) uses the state folder {path}.",
        next_step="use it (RMCS_ADDRESS), end it with `rmcs down`, or give another folder",
    )

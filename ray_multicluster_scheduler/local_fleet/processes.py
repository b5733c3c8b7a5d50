"""Find, signal and kill the processes of a cluster: by descent, session and marker, never by name.

Also finds the files in shared memory that killed processes leave behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARKER = "RMCS_LOCAL_CLUSTER"
"""Environment variable of every process of a local cluster; its value names fleet and cluster."""

_START_TOLERANCE_S = 2.0
"""psutil derives start times from the boot time, which moves a little when the clock is set."""

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Identity:
    """A process id with its start time, so that a reused id is not taken for the old process."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """None if there is no such process."""
        with suppress(psutil.Error):
            return cls(pid, psutil.Process(pid).create_time())
        return None

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        with suppress(psutil.Error):
            return not self.reused() and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def reused(self) -> bool:
        """Whether another process has the id now."""
        now = Identity.of(self.pid)
        return now is not None and abs(now.started - self.started) > _START_TOLERANCE_S


def identities(processes: Iterable[psutil.Process]) -> list[Identity]:
    """The identities of those that still run, by process id."""
    found = []
    for process in living(processes):
        with suppress(psutil.Error):
            found.append(Identity(process.pid, process.create_time()))
    return sorted(found, key=lambda identity: identity.pid)


def recorded(members: Iterable[Identity]) -> Iterator[psutil.Process]:
    """The members that still run: the same processes, not others with reused ids."""
    for member in members:
        with suppress(psutil.Error):
            if member.alive():
                yield psutil.Process(member.pid)


def adopt_orphans() -> None:
    """Make orphaned descendants our children (Linux), so that a double fork does not leave the process tree."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run, each once; zombies are left out."""
    alive: dict[int, psutil.Process] = {}
    for process in processes:
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive[process.pid] = process
    return list(alive.values())


def descendants(pid: int) -> list[psutil.Process]:
    """All descendants of a process."""
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def marked(marker: str) -> Iterator[psutil.Process]:
    """Processes whose environment has this marker, except the caller."""
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == marker:
                yield process


def in_session(session: int) -> Iterator[psutil.Process]:
    """Processes of one process session, except the caller."""
    for process in psutil.process_iter():
        with suppress(OSError):
            if process.pid != os.getpid() and os.getsid(process.pid) == session:
                yield process


def end_all(find: Callable[[], Iterable[psutil.Process]], timeout_s: float = 20.0) -> list[psutil.Process]:
    """SIGKILL what ``find`` returns until it finds none. Returns the survivors after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = living(find())
        if not found or time.monotonic() > deadline:
            return found
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


def signal_all(find: Callable[[], Iterable[psutil.Process]], number: signal.Signals, timeout_s: float = 10.0) -> bool:
    """Send SIGSTOP or SIGCONT to all, until all are (or none is) stopped: new ones may appear meanwhile.

    A process that waits in the kernel counts as stopped once it was signalled: it stops before it does anything else.
    It may wait for a child that it is starting and that is stopped itself.
    """
    stop = number == signal.SIGSTOP
    signalled: set[psutil.Process] = set()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pending = [
            p for p in living(find()) if is_stopped(p) != stop and not (stop and p in signalled and _in_kernel(p))
        ]
        if not pending:
            return True
        for process in pending:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
                signalled.add(process)
        time.sleep(0.02)
    return False


def is_stopped(process: psutil.Process) -> bool:
    """Whether SIGSTOP holds it."""
    with suppress(psutil.Error):
        return process.status() == psutil.STATUS_STOPPED
    return False


def _in_kernel(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() == psutil.STATUS_DISK_SLEEP
    return False


SHARED_MEMORY = Path("/dev/shm")  # nosec B108 # only read


def shared_memory_files(processes: Iterable[psutil.Process]) -> set[Path]:
    """Files under /dev/shm that these processes have mapped; none if the system has no such folder."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {path for process in processes for path in _mapped(process.pid)}


def remove_unused_shared_memory(paths: Iterable[Path]) -> None:
    """Remove those files of this user that no living process has mapped."""
    left = {path for path in paths if owned_by_us(path)}
    if left:
        for path in left - shared_memory_files(psutil.process_iter()):
            path.unlink(missing_ok=True)


def _mapped(pid: int) -> set[Path]:
    found = set()
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            parts = line.rstrip("\n").split(maxsplit=5)
            if len(parts) > 5 and parts[5].startswith(f"{SHARED_MEMORY}/") and not parts[5].endswith(" (deleted)"):
                found.add(Path(parts[5]))
    return found


def owned_by_us(path: Path) -> bool:
    """Whether the file exists and belongs to this user."""
    with suppress(OSError):
        return path.lstat().st_uid == os.getuid()
    return False

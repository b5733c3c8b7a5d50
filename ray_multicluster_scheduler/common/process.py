"""Helpers for processes: whether one is alive, garbage collection for long runs, and crash points for tests."""

from __future__ import annotations

import gc
import os
import signal

CRASH_VARIABLE = "RMCS_CRASH_AT"
"""``NAME`` or ``NAME:N``: kill this process when it passes that crash point for the N-th time. For tests only."""

_crash_name, _, _number = os.environ.get(CRASH_VARIABLE, "").partition(":")
_passes_left = int(_number) if _number.isdecimal() else 1
_GC_YOUNG = 10_000
_GC_MIDDLE = 20


def crash_point(name: str) -> None:
    """Kill this process here, like a power failure, if the environment variable names this point."""
    global _passes_left  # noqa: PLW0603 - one process dies once
    if name == _crash_name:
        _passes_left -= 1
        if _passes_left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def reduce_gc() -> None:
    """Make garbage collection rare, for a process that keeps most of its objects. Call it after start-up.

    Existing objects are frozen, so they are not scanned again. Only reference cycles are freed later than before.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, _GC_MIDDLE, gc.get_threshold()[2])

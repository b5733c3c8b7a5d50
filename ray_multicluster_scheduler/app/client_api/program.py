"""Registry of the running schedulers of this program; shuts them down at exit, on interrupt and after a fork."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - it ends its pools before whoever registered earlier: see below
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

_running: set[UnifiedScheduler] = set()
"""Schedulers with a control plane. A strong reference, so that an unreferenced one still finishes its work."""
_interrupted = threading.Event()
_stopping = threading.Event()
_exiting = threading.Event()


def started(scheduler: UnifiedScheduler) -> None:
    """Register a scheduler whose control plane has started."""
    _running.add(scheduler)


def ended(scheduler: UnifiedScheduler) -> None:
    """Unregister a scheduler whose control plane has ended."""
    _running.discard(scheduler)


def exiting() -> bool:
    """Is the interpreter shutting down?"""
    return _exiting.is_set()


def stop_all() -> None:
    """After an interrupt: cancel what any scheduler of this program has in progress, and end them; each can be used
    again."""
    _stopping.set()
    try:
        _shut_down_all(drain=False)
    finally:
        _stopping.clear()


def interrupted() -> bool:
    """Is the program being ended by Ctrl+C or SIGTERM?"""
    return _interrupted.is_set() or _stopping.is_set()


def stopping() -> bool:
    """Was it asked that what this program has in progress be stopped: under the decorator, or in wait_for_all_jobs?"""
    return _stopping.is_set()


def end_without_draining() -> None:
    """The program was interrupted and ends: what is still submitted is not waited for at its exit."""
    _interrupted.set()


def _end_with_the_program() -> None:
    """Work lives and dies with the program: finish it, unless the program was interrupted."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        _interrupted.set()
    _shut_down_all(drain=not _interrupted.is_set())


def _at_exit() -> None:
    try:
        _end_with_the_program()
    finally:
        _exiting.set()


def _reset_after_fork() -> None:
    for scheduler in _running:
        scheduler._forked()
    _running.clear()


def _shut_down_all(*, drain: bool) -> None:
    with ExitStack() as all_of_them:  # an error or an interrupt at one does not spare the others
        for scheduler in list(_running):
            all_of_them.callback(scheduler._leave, drain=drain)


def _before_threads_end(work: Callable[[], None]) -> None:
    """Plain atexit comes too late: by then no thread pool takes work, and name look-ups need one. Who registers last is
    called first, so the thread pools must have registered before us."""
    getattr(threading, "_register_atexit", atexit.register)(work)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
_before_threads_end(_at_exit)

"""Registry of the running schedulers of this program: shuts them down at exit and on interrupt, resets them after a
fork. At exit it also reports failed items whose errors nobody has read.

UnifiedScheduler registers itself in ``running``; the interrupt handler and the exit hook of Python call the functions.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - must register its exit hook before ours, see below
import os
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.notices import unread_failures

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

running: set[UnifiedScheduler] = set()
"""Schedulers with a control plane. A strong reference, so that an unreferenced one still finishes its work."""
_interrupted = threading.Event()
_stopping = threading.Event()
_exiting = threading.Event()


def exiting() -> bool:
    """Is the interpreter shutting down?"""
    return _exiting.is_set()


def stop_all() -> None:
    """After an interrupt, cancel the work of all schedulers of this program and end them; they can be used again."""
    _stopping.set()
    try:
        _shut_down_all(drain=False)
    finally:
        _stopping.clear()


def interrupted() -> bool:
    """Is the program being ended by Ctrl+C or SIGTERM?"""
    return _interrupted.is_set() or _stopping.is_set()


def stopping() -> bool:
    """Does :func:`stop_all` run, called by the decorator or by wait_for_all_jobs?"""
    return _stopping.is_set()


def end_without_draining() -> None:
    """After an interrupt, do not wait for unfinished work at exit."""
    _interrupted.set()


def _end_with_the_program() -> None:
    """Finish the embedded work at exit, unless the program was interrupted."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        _interrupted.set()
    _shut_down_all(drain=not _interrupted.is_set())


def _at_exit() -> None:
    try:
        _end_with_the_program()
    finally:
        _exiting.set()
        unread_failures.report()


def _reset_after_fork() -> None:
    for scheduler in running:
        scheduler._forked()
    running.clear()
    unread_failures.clear()


def _shut_down_all(*, drain: bool) -> None:
    with ExitStack() as stack:  # an error or an interrupt at one does not skip the others
        for scheduler in list(running):
            stack.callback(scheduler._leave, drain=drain)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
# Plain atexit runs too late: by then no thread pool accepts work, and name look-ups need one. Hooks run in reverse
# order of registration, so the thread pools must have registered before us.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)

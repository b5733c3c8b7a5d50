"""BackgroundWorker: runs short callbacks one after another on a daemon thread that exits when idle."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable

LINGER_S = 2.0
"""How long an idle thread waits for more work before it exits."""


class BackgroundWorker:
    """Runs work items in order. The thread starts on demand; the child of a fork starts with an empty queue."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._alive = False
        self._reset()
        _workers.add(self)

    def put(self, work: Callable[[], object]) -> None:
        """Queue work from any thread; returns at once and never raises."""
        with self._lock:
            self._queue.put(work)
            if self._alive:
                return
            self._alive = True
        try:
            threading.Thread(target=self._run, args=(LINGER_S,), name=self._name, daemon=True).start()
        except RuntimeError:  # no new threads at interpreter exit, but a caller may still wait for this
            self._run(0)

    def _reset(self) -> None:
        self._lock = threading.Lock()  # guards both attributes below: the thread never exits with work queued
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._alive = False

    def _run(self, linger_s: float) -> None:
        while True:
            try:
                work = self._queue.get(timeout=linger_s)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._alive = False
                        return
                continue
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - reported like an uncaught error of any thread
                report = (type(error), error, error.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(report))
            del work  # release its references while idle


_workers: weakref.WeakSet[BackgroundWorker] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for worker in list(_workers):
        worker._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)

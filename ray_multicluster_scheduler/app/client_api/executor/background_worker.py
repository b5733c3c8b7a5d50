"""Errands: work that must not happen where it is noticed, on a thread of its own."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable

LINGER_S = 2.0
"""How long the thread stays without work: longer than between two of many, short beside a program's life."""


class BackgroundWorker:
    """Does one thing after another. The thread is there while there is work, and begins anew in the child of a fork."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._alive = False
        self._begin_anew()
        _all.add(self)

    def put(self, work: Callable[[], object]) -> None:
        """Have it done, from any thread; returns at once and raises nothing."""
        with self._lock:
            self._queue.put(work)
            if self._alive:
                return
            self._alive = True
        try:
            threading.Thread(target=self._run, args=(LINGER_S,), name=self._name, daemon=True).start()
        except RuntimeError:  # the interpreter is ending and makes no more threads; somebody may still wait for this
            self._run(0)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()  # over the two below: no work is left when the thread goes
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
            except BaseException as error:  # noqa: BLE001 - shown as an error of any thread is, and the rest goes on
                report = (type(error), error, error.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(report))
            del work  # what it holds is not kept while there is nothing to do


_all: weakref.WeakSet[BackgroundWorker] = weakref.WeakSet()


def _in_the_child_of_a_fork() -> None:
    for worker in list(_all):
        worker._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child_of_a_fork)

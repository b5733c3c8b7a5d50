"""CallbackThreads: where code of users runs that waits for an item's end, away from the threads that tell of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


class CallbackThreads:
    """A few threads. Whoever comes after :meth:`close`, or in the child of a fork, gets one of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="rmcs-callback")
        self._process = os.getpid()

    def run(self, work: Callable[[], object]) -> None:
        if os.getpid() == self._process:
            with suppress(RuntimeError):  # after the end there is no pool any more
                self._pool.submit(_guarded, work)
                return
        threading.Thread(target=_guarded, args=(work,), name="rmcs-callback").start()

    def close(self) -> None:
        """What was taken is still done."""
        self._pool.shutdown(wait=False)


def _guarded(work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - user code: shown as an error of any thread is, and others go on
        report = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(report))

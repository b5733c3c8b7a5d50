"""Doing something while the main thread is somewhere, not a while before or after."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from tests.support.eventually import until


def main_thread_is_in(*functions: str) -> bool:
    """In all of these, one of which has called the other."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return set(functions) <= names


def when_main_thread_is_in(*functions: str, deed: Callable[[], object]) -> threading.Thread:
    """Do it then, on another thread; to be joined. If it never comes there the deed is done after a minute all the
    same, for nothing is to wait for ever."""

    def work() -> None:
        try:
            until(lambda: main_thread_is_in(*functions), 60)
        finally:
            deed()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)

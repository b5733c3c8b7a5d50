"""Run an action exactly while the main thread is inside given functions."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from tests.support.eventually import until


def main_thread_is_in(*functions: str) -> bool:
    """Whether all these functions are on the stack of the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return set(functions) <= names


def when_main_thread_is_in(*functions: str, action: Callable[[], object]) -> threading.Thread:
    """Run the action then, or after a minute, on another thread, which the caller has to join."""

    def work() -> None:
        try:
            until(lambda: main_thread_is_in(*functions), 60)
        finally:
            action()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)

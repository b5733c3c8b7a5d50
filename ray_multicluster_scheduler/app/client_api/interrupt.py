"""Handles Ctrl+C and SIGTERM in programs: stops the submitted work, prints a notice, and exits with the right code."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api import program as this_program
from ray_multicluster_scheduler.common.notices import notify

P = ParamSpec("P")
T = TypeVar("T")
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class ProgramInterrupt(KeyboardInterrupt):
    """Raised by the decorator's signal handlers."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code
        self.reported = False


def graceful_shutdown_on_keyboard_interrupt(program: Callable[P, T]) -> Callable[P, T]:
    """Decorator: on Ctrl+C or SIGTERM, stop everything this program submitted and exit with 130, or with 143.

    Queued and running items are cancelled one by one; a second Ctrl+C forces. Signal handlers are set while the
    function runs, on the main thread only, and restored afterwards.
    """

    @functools.wraps(program)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with _interruptible():
            try:
                return program(*args, **kwargs)
            except KeyboardInterrupt as interrupt:
                this_program.end_without_draining()
                stop_everything(interrupt)
                code = interrupt.exit_code if isinstance(interrupt, ProgramInterrupt) else EXIT_INTERRUPTED
                raise SystemExit(code) from None

    return guarded


def stop_everything(interrupt: KeyboardInterrupt) -> None:
    """Report the interrupt, once; cancel the unfinished work of this program, on all schedulers, and end them."""
    if not (isinstance(interrupt, ProgramInterrupt) and interrupt.reported):
        notify("interrupted")
    if isinstance(interrupt, ProgramInterrupt):
        interrupt.reported = True
    if execution_context.inside():
        execution_context.native().shutdown()
    this_program.stop_all()


@contextmanager
def _interruptible() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> None:
    raise ProgramInterrupt(EXIT_TERMINATED if number == signal.SIGTERM else EXIT_INTERRUPTED)

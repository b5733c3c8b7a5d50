"""A progress bar for whoever waits: counted where things end, drawn by a thread of its own, on stderr.

Standard library only, until a bar is really drawn: executors are also used inside clusters.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.item import Promise

_log = get_logger(__name__)
DRAW_S = 0.1
LAST_WORD_S = 1.0
"""So long the last picture is waited for: a terminal that takes nothing more holds nobody up."""


class Bar(Protocol):
    """What draws. Used by one thread."""

    def show(self, finished: int, failed: int) -> None: ...

    def end(self) -> None: ...


class Progress:
    """Counts what is over; ``failed`` are among the finished. Safe from any thread, and never waits for the screen."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._lock = threading.Lock()
        self.finished = self.failed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="rmcs-progress", daemon=True)
        self._thread.start()

    def count(self, finished: int, failed: int) -> None:
        """So many more are over."""
        with self._lock:
            self.finished += finished
            self.failed += failed

    def stop(self) -> None:
        """The last picture will be drawn soon; takes no lock and waits for nothing."""
        self._over.set()

    def close(self) -> None:
        """The same, and see it drawn."""
        self.stop()
        self._thread.join(LAST_WORD_S)

    def _draw(self) -> None:
        try:
            bar = _bar(self._what, self._total)
            bar.show(*self._counts())
            while not self._over.wait(DRAW_S):
                bar.show(*self._counts())
            bar.show(*self._counts())
            bar.end()
        except Exception:  # noqa: BLE001 - whatever a screen does wrong, the work goes on
            _log.debug("the progress bar could not be drawn", exc_info=True)

    def _counts(self) -> tuple[int, int]:
        """More may be over than were waited for."""
        return self.finished if self._total is None else min(self.finished, self._total), self.failed


def begin(wanted: object, what: str, total: int | None) -> Progress | None:
    """None where nobody wants it, or nobody would see it. Raises ConfigurationError."""
    if wanted is None or wanted is False:
        return None
    if wanted is not True:
        raise ConfigurationError(f"progress is {wanted!r}.", next_step="give True or False")
    return Progress(what, total) if is_seen() else None


def is_seen() -> bool:
    """Is stderr a terminal, or are we in a notebook?"""
    try:
        return sys.stderr.isatty() or in_notebook()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def in_notebook() -> bool:
    """Nothing is imported to find out."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


@contextmanager
def counted(
    wanted: object, what: str, promises: Iterable[Promise], total: int | None = None, *, see_it_drawn: bool = True
) -> Iterator[None]:
    """While they are waited for, show how many are over, of ``total`` or of all. Whoever must not wait at all does not
    see the last picture drawn. Raises ConfigurationError."""
    unique = list({id(one): one for one in promises}.values()) if wanted else []
    progress = begin(wanted, what, len(unique) if total is None else total)
    if progress is None:
        yield
        return
    tell = _Teller(progress)
    try:
        for one in unique:
            one.watch(tell)  # tells at once of one that is over
        yield
    finally:
        for one in unique:
            if one.outcome is None:
                one.unwatch(tell)
        (progress.close if see_it_drawn else progress.stop)()


class _Teller:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, promise: Promise) -> None:
        self._progress.count(1, 0 if promise.outcome is None or promise.outcome.succeeded else 1)


def _bar(what: str, total: int | None) -> Bar:
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415 - only if somebody has installed it, and wants a bar
    except ImportError:
        return _RichBar(what, total)
    return _TqdmBar(tqdm(total=total, desc=what, file=sys.stderr, unit="", leave=True))


class _TqdmBar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def show(self, finished: int, failed: int) -> None:
        self._bar.set_postfix({"failed": failed} if failed else {}, refresh=False)
        self._bar.update(finished - self._bar.n)
        self._bar.refresh()

    def end(self) -> None:
        self._bar.close()


class _RichBar:
    def __init__(self, what: str, total: int | None) -> None:
        from rich import progress  # noqa: PLC0415 - not there inside of a cluster
        from rich.console import Console  # noqa: PLC0415 - not there inside of a cluster

        self._picture = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[failed]}", style="red"),
            console=Console(stderr=True),
            auto_refresh=False,
            redirect_stdout=False,  # what the program prints stays where it prints it
            redirect_stderr=False,
        )
        self._task = self._picture.add_task(what, total=total, failed="")
        self._picture.start()

    def show(self, finished: int, failed: int) -> None:
        words = f"{failed} failed" if failed else ""
        self._picture.update(self._task, completed=finished, failed=words, refresh=True)

    def end(self) -> None:
        self._picture.stop()

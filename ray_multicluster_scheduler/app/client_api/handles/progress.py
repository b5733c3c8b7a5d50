"""Progress bars of `get`, `wait` and `map`: counted where items end, drawn on stderr by a separate thread.

Standard library only until a bar is drawn, since executors are also used inside clusters.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.item import Promise

_log = get_logger(__name__)
DRAW_S = 0.1
LAST_WORD_S = 1.0
"""How long :meth:`Progress.close` waits for the last drawing: a blocked terminal must not block the program."""


class Progress:
    """Counts finished items, ``failed`` ones among them. Thread-safe; counting never waits for the terminal."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._lock = threading.Lock()
        self.finished = self.failed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="rmcs-progress", daemon=True)
        self._thread.start()

    def count(self, finished: int, failed: int) -> None:
        """Add to the counts."""
        with self._lock:
            self.finished += finished
            self.failed += failed

    def stop(self) -> None:
        """Request the last drawing. Takes no lock and does not wait."""
        self._over.set()

    def close(self) -> None:
        """Request the last drawing and wait for it."""
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
        except Exception:  # noqa: BLE001 - an error of the terminal must not stop the work
            _log.debug("the progress bar could not be drawn", exc_info=True)

    def _counts(self) -> tuple[int, int]:
        # More may have finished than were waited for.
        return self.finished if self._total is None else min(self.finished, self._total), self.failed


def begin(wanted: object, what: str, total: int | None) -> Progress | None:
    """Start a progress bar; None if it is not wanted or stderr is not visible. Raises ConfigurationError."""
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
    """Does this run in a notebook? Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


@contextmanager
def counted(
    wanted: object, what: str, promises: Iterable[Promise], total: int | None = None, *, see_it_drawn: bool = True
) -> Iterator[None]:
    """Show the progress of ``promises`` while the block waits for them. ``see_it_drawn``: wait for the last drawing.
    Raises ConfigurationError."""
    unique = list({id(one): one for one in promises}.values()) if wanted else []
    progress = begin(wanted, what, len(unique) if total is None else total)
    if progress is None:
        yield
        return

    def count(promise: Promise) -> None:
        progress.count(1, 0 if promise.outcome is None or promise.outcome.succeeded else 1)

    try:
        for one in unique:
            one.watch(count)  # called at once for a finished one
        yield
    finally:
        for one in unique:
            if one.outcome is None:
                one.unwatch(count)
        (progress.close if see_it_drawn else progress.stop)()


def _bar(what: str, total: int | None) -> _TqdmBar | _RichBar:
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415 - optional, and only for a bar
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
        from rich import progress  # noqa: PLC0415 - not installed in clusters
        from rich.console import Console  # noqa: PLC0415 - not installed in clusters

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[failed]}", style="red"),
            console=Console(stderr=True),
            auto_refresh=False,
            redirect_stdout=False,  # leave the program's output alone
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(what, total=total, failed="")
        self._progress.start()

    def show(self, finished: int, failed: int) -> None:
        words = f"{failed} failed" if failed else ""
        self._progress.update(self._task, completed=finished, failed=words, refresh=True)

    def end(self) -> None:
        self._progress.stop()

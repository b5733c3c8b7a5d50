"""`rmcs top`: the fleet on a whole screen, live."""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import typer

from ray_multicluster_scheduler.cli.arguments.options import LONGEST_S
from ray_multicluster_scheduler.cli.layout.output import console, is_terminal
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect, path_of
from ray_multicluster_scheduler.cli.service.passive_queries import clusters_now
from ray_multicluster_scheduler.cli.terminal.terminal_restore import ended_well
from ray_multicluster_scheduler.cli.top.screen import TopPicture
from ray_multicluster_scheduler.cli.top.state import AHEAD, MOST_ROWS, View, keys_of, press, rows_needed, rows_wanted
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError

ANSWER_S = 10.0
_RUNNING = ("DISPATCHING", "RUNNING")
"""What is shown as running."""
_LOOK_S = 0.25
"""So often it is looked whether the terminal has another size."""
_REST_S = 0.2
"""So long the service is left alone between two looks, however fast somebody types."""
_SEQUENCE_S = 0.05
"""The rest of what a key sends comes within this time."""


def top(
    every: Annotated[float, typer.Option("--every", min=0.5, max=LONGEST_S, help="Seconds between two looks.")] = 2.0,
    address: Address = None,
) -> None:
    """Watch clusters, nodes, queue and running items live.

    On a whole screen. The keys are named in the last line; the same sort key again turns the order around. Ends with q.
    """
    from ray_multicluster_scheduler.common.exception import ConfigurationError

    if not is_terminal() or not sys.stdin.isatty():
        raise ConfigurationError(
            "`rmcs top` needs a terminal.", next_step="use `rmcs status --watch`, or `rmcs status -o json`"
        )
    service = connect(address, answer_s=ANSWER_S)
    seen = look(service)  # what is wrong from the beginning is said on the ordinary screen
    with ended_well(), _single_keys(), _Looker(service, every, seen) as looker:
        _show(looker)


class Wanted(NamedTuple):
    """What of it is looked at: so many rows of the queue, and of what runs. At first, enough for any pane."""

    waiting: int = AHEAD
    running: int = AHEAD


_AT_FIRST = Wanted()


def look(service: Service, wanted: Wanted = _AT_FIRST) -> dict[str, Any]:
    """What there is to see now. ``asked``: so many rows were asked for; ``more``: there are more than came."""
    now = time.time()
    queue = service.get(path_of("queue"), limit=wanted.waiting)
    running = service.rows(path_of("items"), "items", wanted.running, state=",".join(_RUNNING))
    run = _how_many_run(queue, running, wanted.running)
    return {
        "at": now,
        "queue_at": now,
        "address": service.address,
        "version": service.get(path_of("fleet"))["version"],
        "clusters": clusters_now(service),
        "nodes": service.get(path_of("nodes"))["nodes"],
        "queue": queue["waiting"],
        "running": running,
        "counts": {"queue": queue["depth"], "running": run},
        "asked": {"queue": wanted.waiting, "running": wanted.running},
        "more": {
            "queue": queue["after"] is not None and len(queue["waiting"]) < queue["depth"],
            "running": len(running) >= wanted.running and run != str(len(running)),
        },
    }


def lacks(seen: Mapping[str, Any], needed: Wanted) -> bool:
    """Are there rows that are looked at and were not asked for?"""
    return any(
        seen["more"][pane] and seen["asked"][pane] < rows
        for pane, rows in zip(("queue", "running"), needed, strict=True)
    )


def _how_many_run(queue: Mapping[str, Any], rows: Sequence[object], most: int) -> str:
    """As the service counts them; an older one does not, and then more than these may."""
    counts = queue.get("on_clusters")
    if counts is None:
        return f"{len(rows)}{'+' if len(rows) == most else ''}"
    return str(sum(counts.get(state, 0) for state in _RUNNING))


class _Looker:
    """Asks the service on a thread of its own, so that keys are never kept waiting; ``news`` can be selected on."""

    def __init__(self, service: Service, every: float, seen: dict[str, Any]) -> None:
        self._service, self._every = service, every
        self.seen = seen
        self.trouble: tuple[str, float] | None = None
        self.refused: NotAllowedError | None = None
        self.paused, self.wanted, self.needed = False, _AT_FIRST, Wanted(0, 0)
        self._asked, self._over = threading.Event(), False
        self.news, self._tell = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rmcs-top", daemon=True)

    def __enter__(self) -> _Looker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """An answer that is still awaited is not waited for; the pipe is the process's last."""
        self._over = True
        self._asked.set()

    def want(self, view: View, room: int) -> None:
        """This is looked at; if that needs more than is known, it is asked for at once."""
        all_that_run = view.pane == "running"  # they are not in the order in which they are shown
        self.needed = Wanted(rows_needed(view, room), MOST_ROWS if all_that_run else 0)
        wanted = Wanted(rows_wanted(view, room), MOST_ROWS if all_that_run else AHEAD)
        more = wanted.waiting > self.wanted.waiting or wanted.running > self.wanted.running
        self.wanted = wanted
        if more:
            self.now()

    def now(self) -> None:
        """Do not wait until it is time."""
        self._asked.set()

    def _run(self) -> None:
        while not self._over:
            time.sleep(_REST_S)
            self._asked.wait(self._every - _REST_S)
            self._asked.clear()
            if not self._over and self._is_due():
                self._look()
                os.write(self._tell, b".")

    def _is_due(self) -> bool:
        """Whoever pauses sees one moment; a new one only if what they look at now was not asked for then, or if the
        service was away."""
        return not self.paused or self.trouble is not None or lacks(self.seen, self.needed)

    def _look(self) -> None:
        try:
            wanted = self.wanted
            if self.paused:  # whoever goes back to another pane finds its rows
                wanted = Wanted(*map(max, wanted, self.seen["asked"].values()))
            seen = look(self._service, wanted)
            if wanted.waiting == 1 and seen["more"]["queue"]:  # it is shown as it was, until it is asked for
                seen |= {key: self.seen[key] for key in ("queue", "queue_at")}
            self.seen = seen
            self.trouble = None
        except NotAllowedError as error:  # its token was revoked, or has expired: asking again does not mend that
            self.refused = error
        except (SchedulerError, OSError, LookupError) as error:
            since = time.time() if self.trouble is None else self.trouble[1]
            self.trouble = (str(error).partition("\n")[0] or type(error).__name__, since)


def _show(looker: _Looker) -> None:
    """Until somebody presses q. Raises NotAllowedError if the service lets us in no more."""
    from rich.live import Live

    view, screen = View(), console()
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        while not view.over:
            size = shutil.get_terminal_size()
            screen.size = (size.columns, size.lines)
            picture = TopPicture(view, looker.seen, time.time(), size.lines, looker.trouble)
            view = picture.view
            looker.want(view, picture.room)
            live.update(picture, refresh=True)
            while shutil.get_terminal_size() == size:
                ready, _, _ = select.select([sys.stdin, looker.news], [], [], _LOOK_S)
                if looker.news in ready:
                    os.read(looker.news, 1024)
                if looker.refused is not None:
                    raise looker.refused
                if sys.stdin in ready:
                    for key in _keys():
                        view = press(view, key)
                    looker.paused = view.paused
                    looker.now()
                if ready or looker.trouble is not None:
                    break


def _keys() -> list[str]:
    """Raises EOFError if the terminal is gone."""
    file = sys.stdin.fileno()
    sent = os.read(file, 1024)
    if not sent:
        raise EOFError
    if sent.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and select.select([file], [], [], _SEQUENCE_S)[0]:
        sent += os.read(file, 1024)
    return keys_of(sent.decode("utf-8", "ignore"))


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come one by one, and are not shown; Ctrl+C stays what it is. Afterwards the terminal is as it was."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        now = termios.tcgetattr(file)
        now[6][termios.VSUSP] = b"\0"  # Ctrl+Z would leave a shell on this screen
        termios.tcsetattr(file, termios.TCSANOW, now)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSAFLUSH, before)

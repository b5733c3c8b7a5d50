"""`rmcs top`: a live, full-screen view of the fleet."""

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

from ray_multicluster_scheduler.cli.arguments.options import MAX_INTERVAL_S
from ray_multicluster_scheduler.cli.layout.output import console, exit_on_signals, is_terminal
from ray_multicluster_scheduler.cli.service.client import Address, Service, api_path, connect
from ray_multicluster_scheduler.cli.service.cluster_queries import current_clusters
from ray_multicluster_scheduler.cli.top.screen import TopScreen
from ray_multicluster_scheduler.cli.top.state import AHEAD, MAX_ROWS, View, parse_keys, press, rows_needed, rows_wanted
from ray_multicluster_scheduler.common.exception import ConfigurationError, NotAllowedError, SchedulerError

ANSWER_S = 10.0
_RUNNING = ("DISPATCHING", "RUNNING", "PREEMPTING")
"""States in the pane of running items."""
_RESIZE_S = 0.25
"""Interval of checks for another terminal size."""
_MIN_INTERVAL_S = 0.2
"""The shortest time between two requests, however fast keys are pressed."""
_SEQUENCE_S = 0.05
"""The rest of an escape sequence arrives within this time."""


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.5, max=MAX_INTERVAL_S, help="Seconds between two refreshes.")
    ] = 2.0,
    address: Address = None,
) -> None:
    """Watch clusters, nodes, queue and running items live.

    Full screen. The last line lists the keys; the same sort key again reverses the order. q quits.
    """
    if not is_terminal() or not sys.stdin.isatty():
        raise ConfigurationError(
            "`rmcs top` needs a terminal.", next_step="use `rmcs status --watch`, or `rmcs status -o json`"
        )
    service = connect(address, answer_s=ANSWER_S)
    data = fetch(service)  # an error at the start is printed on the ordinary screen
    with exit_on_signals(), _single_keys(), _Poller(service, every, data) as poller:
        _show(poller)


class RowCounts(NamedTuple):
    """Numbers of rows of the queue and of running items. The defaults are enough for any pane at first."""

    waiting: int = AHEAD
    running: int = AHEAD


_INITIAL = RowCounts()


def fetch(service: Service, wanted: RowCounts = _INITIAL) -> dict[str, Any]:
    """The data of all panes. ``asked``: the numbers of requested rows; ``more``: whether there are more."""
    now = time.time()
    queue = service.get(api_path("queue"), limit=wanted.waiting, order="position")
    running = service.rows(api_path("items"), "items", wanted.running, state=",".join(_RUNNING))
    run = _running_count(queue, running, wanted.running)
    return {
        "at": now,
        "queue_at": now,
        "address": service.address,
        "version": service.get(api_path("fleet"))["version"],
        "clusters": current_clusters(service),
        "nodes": service.get(api_path("nodes"))["nodes"],
        "pools": service.get(api_path("pools"))["pools"],
        "queue": queue["waiting"],
        "running": running,
        "counts": {"queue": queue["depth"], "running": run},
        "asked": {"queue": wanted.waiting, "running": wanted.running},
        "more": {
            "queue": len(queue["waiting"]) < queue["depth"],
            "running": len(running) >= wanted.running and run != str(len(running)),
        },
    }


def lacks_rows(data: Mapping[str, Any], needed: RowCounts) -> bool:
    """Are there rows that are needed and were not requested?"""
    return any(
        data["more"][pane] and data["asked"][pane] < rows
        for pane, rows in zip(("queue", "running"), needed, strict=True)
    )


def _running_count(queue: Mapping[str, Any], rows: Sequence[object], most: int) -> str:
    """The count of the service; an older one does not send it, then that of the rows, with "+" if there may be more."""
    counts = queue.get("on_clusters")
    if counts is None:
        return f"{len(rows)}{'+' if len(rows) == most else ''}"
    return str(sum(counts.get(state, 0) for state in _RUNNING))


class _Poller:
    """Fetches data on a thread, so that keys are never delayed; ``updated`` becomes readable after each request."""

    def __init__(self, service: Service, every: float, data: dict[str, Any]) -> None:
        self._service, self._every = service, every
        self.data = data
        self.problem: tuple[str, float] | None = None
        self.refused: NotAllowedError | None = None
        self.paused, self.wanted, self.needed = False, _INITIAL, RowCounts(0, 0)
        self._wake, self._over = threading.Event(), False
        self.updated, self._update = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rmcs-top", daemon=True)

    def __enter__(self) -> _Poller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait for a pending answer; the process ends with the command."""
        self._over = True
        self._wake.set()

    def want(self, view: View, room: int) -> None:
        """Set what the screen shows; if that needs more rows, they are requested at once."""
        all_rows = view.pane == "running"  # they are sorted here
        self.needed = RowCounts(rows_needed(view, room), MAX_ROWS if all_rows else 0)
        wanted = RowCounts(rows_wanted(view, room), MAX_ROWS if all_rows else AHEAD)
        more = wanted.waiting > self.wanted.waiting or wanted.running > self.wanted.running
        self.wanted = wanted
        if more:
            self.now()

    def now(self) -> None:
        """Poll without waiting for the interval."""
        self._wake.set()

    def _run(self) -> None:
        while not self._over:
            time.sleep(_MIN_INTERVAL_S)
            self._wake.wait(self._every - _MIN_INTERVAL_S)
            self._wake.clear()
            if not self._over and self._is_due():
                self._poll()
                os.write(self._update, b".")

    def _is_due(self) -> bool:
        """While paused, data is fetched only if rows are missing, or after an error."""
        return not self.paused or self.problem is not None or lacks_rows(self.data, self.needed)

    def _poll(self) -> None:
        try:
            wanted = self.wanted
            if self.paused:  # keep the rows of the other panes
                wanted = RowCounts(*map(max, wanted, self.data["asked"].values()))
            data = fetch(self._service, wanted)
            if wanted.waiting == 1 and data["more"]["queue"]:  # the pane is not shown: keep its old rows
                data |= {key: self.data[key] for key in ("queue", "queue_at")}
            self.data = data
            self.problem = None
        except NotAllowedError as error:  # the token was revoked, or has expired: a retry does not help
            self.refused = error
        except (SchedulerError, OSError, LookupError) as error:
            since = time.time() if self.problem is None else self.problem[1]
            self.problem = (str(error).partition("\n")[0] or type(error).__name__, since)


def _show(poller: _Poller) -> None:
    """Until q is pressed. Raises NotAllowedError if the service refuses the token."""
    from rich.live import Live

    view, screen = View(), console()
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        while not view.over:
            size = shutil.get_terminal_size()
            screen.size = (size.columns, size.lines)
            drawn = TopScreen(view, poller.data, time.time(), size.lines, poller.problem)
            view = drawn.view
            poller.want(view, drawn.room)
            live.update(drawn, refresh=True)
            while shutil.get_terminal_size() == size:
                ready, _, _ = select.select([sys.stdin, poller.updated], [], [], _RESIZE_S)
                if poller.updated in ready:
                    os.read(poller.updated, 1024)
                if poller.refused is not None:
                    raise poller.refused
                if sys.stdin in ready:
                    for key in _keys():
                        view = press(view, key)
                    poller.paused = view.paused
                    poller.now()
                if ready or poller.problem is not None:
                    break


def _keys() -> list[str]:
    """Raises EOFError if the terminal is gone."""
    file = sys.stdin.fileno()
    sent = os.read(file, 1024)
    if not sent:
        raise EOFError
    if sent.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and select.select([file], [], [], _SEQUENCE_S)[0]:
        sent += os.read(file, 1024)
    return parse_keys(sent.decode("utf-8", "ignore"))


@contextmanager
def _single_keys() -> Iterator[None]:
    """Read keys one by one without echo; Ctrl+C keeps its meaning. Restores the terminal."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        now = termios.tcgetattr(file)
        now[6][termios.VSUSP] = b"\0"  # Ctrl+Z would leave the shell on this screen
        termios.tcsetattr(file, termios.TCSANOW, now)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSAFLUSH, before)

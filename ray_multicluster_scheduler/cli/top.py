"""`rmcs top`: the fleet on a whole screen, live."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

from ray_multicluster_scheduler.cli.clusters import clusters_now
from ray_multicluster_scheduler.cli.output import console, is_terminal
from ray_multicluster_scheduler.cli.service import Address, Service, connect, path_of
from ray_multicluster_scheduler.cli.top_picture import TopPicture
from ray_multicluster_scheduler.cli.top_state import View, keys_of, press
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError

MOST_ROWS = 1000
ANSWER_S = 10.0
_LOOK_S = 0.25
"""So often it is looked whether the terminal has another size."""
_REST_S = 0.2
"""So long the service is left alone between two looks, however fast somebody types."""
_SEQUENCE_S = 0.05
"""The rest of what a key sends comes within this time."""


def top(
    every: Annotated[float, typer.Option("--every", min=0.5, help="Seconds between two looks.")] = 2.0,
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
    with _ended_well(), _single_keys(), _Looker(service, every, seen) as looker:
        _show(looker)


def look(service: Service) -> dict[str, Any]:
    """What there is to see now."""
    queue = service.get(path_of("queue"), limit=MOST_ROWS)
    running = service.rows(path_of("items"), "items", MOST_ROWS, state="DISPATCHING,RUNNING")
    return {
        "address": service.address,
        "version": service.get(path_of("fleet"))["version"],
        "clusters": clusters_now(service),
        "nodes": service.get(path_of("nodes"))["nodes"],
        "queue": queue["waiting"],
        "running": running,
        "counts": {"queue": queue["depth"], "running": f"{len(running)}{'+' if len(running) == MOST_ROWS else ''}"},
    }


class _Looker:
    """Asks the service on a thread of its own, so that keys are never kept waiting; ``news`` can be selected on."""

    def __init__(self, service: Service, every: float, seen: dict[str, Any]) -> None:
        self._service, self._every = service, every
        self.seen = seen
        self.trouble: tuple[str, float] | None = None
        self.refused: NotAllowedError | None = None
        self.paused = False
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

    def now(self) -> None:
        """Do not wait until it is time."""
        self._asked.set()

    def _run(self) -> None:
        while not self._over:
            time.sleep(_REST_S)
            self._asked.wait(self._every - _REST_S)
            self._asked.clear()
            if not self._over and not self.paused:
                self._look()
                os.write(self._tell, b".")

    def _look(self) -> None:
        try:
            self.seen = look(self._service)
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


@contextmanager
def _ended_well() -> Iterator[None]:
    """A signal that ends us lets the terminal be set right first."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(one, end) for one in ending]
    try:
        yield
    except EOFError:  # the terminal is gone, and with it whoever looked
        raise SystemExit(128 + signal.SIGHUP) from None
    finally:
        for one, handler in zip(ending, before, strict=True):
            signal.signal(one, handler)

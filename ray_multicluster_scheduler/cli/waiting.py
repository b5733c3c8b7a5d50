"""Waiting for an item, and following what it prints; the person at the terminal sees why it does not go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.output import console, is_terminal, say
from ray_multicluster_scheduler.cli.service import path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service import Service

LOOK_AGAIN_S = 0.5
_BACK_AGAIN_S = 30.0
"""So long a service that was there may be away while somebody waits: it is being started again."""
CancelOnInterrupt = Annotated[
    bool, typer.Option("--cancel-on-interrupt", help="Ctrl+C cancels it; without this, it goes on.")
]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Wait at most so many seconds.")]
_BEFORE_ITS_START = frozenset({"PENDING", "QUEUED", "DISPATCHING", "RETRYING", "LOST"})


class Deadline:
    """When somebody does not want to wait any longer; None: never."""

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds; None: as many as it takes."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at


@contextmanager
def interrupted_well(service: Service, item_id: str, *, cancel: bool) -> Iterator[None]:
    """Ctrl+C ends the wait; the work goes on, and that is said, or it is cancelled if that is wanted."""
    try:
        yield
    except KeyboardInterrupt:
        if cancel:
            service.post(path_of("items", item_id, "cancel"), {"reason": "Ctrl+C at `rmcs`"})
            say(f"{item_id} is cancelled")
        else:
            say(f"{item_id} goes on; follow it with `rmcs task logs -f {item_id}`, end it with `rmcs task cancel`")
        raise typer.Exit(exit_codes.INTERRUPTED) from None


def wait_until(
    service: Service, item_id: str, enough: Callable[[str], bool], timeout: float | None = None
) -> dict[str, Any]:
    """The item, when its state is enough, or the time is over. Meanwhile the reason why it waits is shown."""
    deadline = Deadline(timeout)
    with Reason() as reason:
        while True:
            item = patiently(lambda: service.get(path_of("items", item_id)))
            if enough(item["state"]) or deadline.over:
                return dict(item)
            reason.show(_why(service, item))
            left = deadline.left()
            time.sleep(LOOK_AGAIN_S if left is None else min(LOOK_AGAIN_S, left))


def follow(
    service: Service, item_id: str, write: Callable[[str], object], timeout: float | None = None
) -> dict[str, Any]:
    """What it prints, as it comes, until it is over, or the time is; returns it as it is then. An attempt's output that
    was heard before the service was away is not told again."""
    from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

    printed, deadline = _Printed(write), Deadline(timeout)
    while True:
        item = wait_until(service, item_id, lambda state: state not in _BEFORE_ITS_START, deadline.left())
        printed.attempt(int(item.get("attempt", 0)))
        try:
            if not deadline.over:
                # A silence is no end: whoever has a deadline looks now and then whether that is over.
                silence_s = None if timeout is None else max(0.1, deadline.left() or 0.0)
                for piece in service.stream(path_of("items", item_id, "logs"), silence_s=silence_s, follow=True):
                    printed.hear(piece)
                    if deadline.over:
                        break
        except (ServiceUnavailableError, TimeoutError):
            pass  # whether it is over is asked below, and the service waited for
        item = wait_until(service, item_id, lambda _: True)
        if exit_codes.is_over(item["state"]) or deadline.over:
            return item
        time.sleep(LOOK_AGAIN_S)


class _Printed:
    """Knows how much of an attempt's output was written."""

    def __init__(self, write: Callable[[str], object]) -> None:
        import codecs

        self._write, self._number, self._told, self._heard = write, -1, 0, 0
        self._new_decoder = codecs.getincrementaldecoder("utf-8")
        self._decoder = self._new_decoder("replace")

    def attempt(self, number: int) -> None:
        """It is told from its beginning now."""
        if number != self._number:
            self._number, self._told = number, 0
        self._heard, self._decoder = 0, self._new_decoder("replace")

    def hear(self, piece: bytes) -> None:
        text = self._decoder.decode(piece)
        new = text[max(0, self._told - self._heard) :]
        self._heard += len(text)
        if new:
            self._told = self._heard
            self._write(new)


def _why(service: Service, item: dict[str, Any]) -> str:
    """In one line: what it waits for."""
    story = patiently(lambda: service.get(path_of("items", item["id"], "explain")))
    sentence = str(story.get("sentence") or "").partition("\n")[0]
    return f"{item['id']} is {item['state']}: {sentence}" if sentence else f"{item['id']} is {item['state']}"


class Reason:
    """A spinner on a terminal; elsewhere a line whenever the reason changes."""

    def __init__(self) -> None:
        self._said, self._spinner = "", None if not is_terminal(stderr=True) else console(stderr=True).status("")
        self._spins = False

    def __enter__(self) -> Reason:
        return self

    def show(self, text: str) -> None:
        from rich.text import Text

        if text == self._said:
            return
        self._said = text
        if self._spinner is None:
            say(text)
            return
        self._spinner.update(Text(text))
        if not self._spins:
            self._spinner.start()
            self._spins = True

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None and self._spins:
            self._spinner.stop()


def patiently(ask: Callable[[], Any]) -> Any:
    """A service that is being started again is waited for."""
    from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

    until = time.monotonic() + _BACK_AGAIN_S
    told = False
    while True:
        try:
            return ask()
        except (ServiceUnavailableError, TimeoutError) as error:
            if time.monotonic() > until:
                raise
            if not told:
                say(f"{error}; it is asked again")
                told = True
            time.sleep(LOOK_AGAIN_S)


def to_stdout(text: str) -> None:
    """At once: whoever follows wants to see it now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def to_stderr(text: str) -> None:
    """Where stdout is for something else."""
    sys.stderr.write(text)
    sys.stderr.flush()

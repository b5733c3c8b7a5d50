"""Waiting for an item, and following what it prints; the person at the terminal sees why it does not go on."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.output import console, is_terminal, say
from ray_multicluster_scheduler.cli.printed import Printed
from ray_multicluster_scheduler.cli.service import path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service import Service

LOOK_AGAIN_S = 0.5
BACK_AGAIN_S = 30.0
"""So long a service that was there may be away while somebody waits for an order: it is being started again. Whoever
only looks on waits as long as it takes."""
CancelOnInterrupt = Annotated[
    bool, typer.Option("--cancel-on-interrupt", help="Ctrl+C cancels it; without this, it goes on.")
]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, help="Wait at most so many seconds.")]
Tail = Annotated[
    int | None, typer.Option("--tail", min=0, help="Of what it had printed, only so many lines of the end.")
]
_NUMBERS = re.compile(r"[\d.]+")
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
            answer = service.post(path_of("items", item_id, "cancel"), {"reason": "Ctrl+C at `rmcs`"})
            was_over = not answer.get("changed", True)
            say(f"{item_id} is over already: {answer['state']}" if was_over else f"{item_id} is cancelled")
        else:
            say(f"{item_id} goes on; follow it with `rmcs task logs -f {item_id}`, end it with `rmcs task cancel`")
        raise typer.Exit(exit_codes.INTERRUPTED) from None


def wait_until(
    service: Service,
    item_id: str,
    enough: Callable[[str], bool],
    timeout: float | None = None,
    patience: float | None = BACK_AGAIN_S,
) -> dict[str, Any]:
    """The item, when its state is enough, or the time is over. Meanwhile the reason why it waits is shown. For
    ``patience`` see :func:`patiently`."""
    deadline = Deadline(timeout)
    with Reason() as reason:
        while True:
            item = patiently(lambda: service.get(path_of("items", item_id)), patience)
            if enough(item["state"]) or deadline.over:
                return dict(item)
            reason.show(_why(service, item, patience))
            left = deadline.left()
            time.sleep(LOOK_AGAIN_S if left is None else min(LOOK_AGAIN_S, left))


def follow(
    service: Service,
    item_id: str,
    write: Callable[[str], object],
    timeout: float | None = None,
    tail: int | None = None,
) -> dict[str, Any]:
    """What it prints, as it comes, until it is over, or the time is; returns it as it is then.

    Attempt after attempt; of the first one with ``tail`` only so many lines of what it had printed. A service that is
    away is waited for, and what was heard before is not told again."""
    from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

    printed, deadline, number = Printed(write), Deadline(timeout), 0
    while True:
        left = deadline.left()
        item = wait_until(service, item_id, lambda state: state not in _BEFORE_ITS_START, left, patience=left)
        newest = int(item.get("attempt", 0))
        number = min(number or newest, newest)  # what was not written when it was killed is not known any more
        printed.attempt(number)
        path, attempt = path_of("items", item_id, "logs"), number or None
        try:
            if tail is not None:
                printed.begin_with(service.fetch(path, attempt=attempt), tail)
                tail = None
            if not deadline.over:
                # A silence is no end: whoever has a deadline looks now and then whether that is over.
                silence_s = None if timeout is None else max(0.1, deadline.left() or 0.0)
                for piece in service.stream(path, silence_s=silence_s, follow=True, attempt=attempt):
                    printed.hear(piece)
                    if deadline.over:
                        break
        except (ServiceUnavailableError, TimeoutError):
            pass  # whether it is over is asked below, and the service waited for
        item = wait_until(service, item_id, lambda _: True, patience=deadline.left())
        newest = int(item.get("attempt", 0))
        if deadline.over or (exit_codes.is_over(item["state"]) and newest <= number):
            return item
        if newest > number:
            number += 1
        else:
            time.sleep(LOOK_AGAIN_S)


def _why(service: Service, item: dict[str, Any], patience: float | None) -> str:
    """In one line: what it waits for."""
    story = patiently(lambda: service.get(path_of("items", item["id"], "explain")), patience)
    sentence = str(story.get("sentence") or "").partition("\n")[0]
    return f"{item['id']} is {item['state']}: {sentence}" if sentence else f"{item['id']} is {item['state']}"


class Reason:
    """A spinner on a terminal; elsewhere a line whenever the reason changes, by more than its numbers: it may tell
    how many seconds are left."""

    def __init__(self) -> None:
        self._said, self._spinner = "", None if not is_terminal(stderr=True) else console(stderr=True).status("")
        self._spins = False

    def __enter__(self) -> Reason:
        return self

    def show(self, text: str) -> None:
        from rich.text import Text

        if text == self._said:
            return
        before, self._said = self._said, text
        if self._spinner is None:
            if _NUMBERS.sub("0", text) != _NUMBERS.sub("0", before):
                say(text)
            return
        self._spinner.update(Text(text))
        if not self._spins:
            self._spinner.start()
            self._spins = True

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None and self._spins:
            self._spinner.stop()


def patiently(ask: Callable[[], Any], patience: float | None = BACK_AGAIN_S) -> Any:
    """A service that is away, as it is being started again, is waited for: so many seconds, or as long as it takes.
    That is said once, and so is its end. What it refuses is not asked again."""
    from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

    deadline, told = Deadline(patience), False
    while True:
        try:
            answer = ask()
        except (ServiceUnavailableError, TimeoutError) as error:
            if deadline.over:
                raise
            if not told:
                say(away_words(error))
                told = True
            time.sleep(LOOK_AGAIN_S)
            continue
        if told:
            say("the service answers again")
        return answer


def away_words(error: Exception) -> str:
    """That it is away, why, and what happens then."""
    why = str(getattr(error, "message", "")) or "the service says nothing any more."
    return f"{why} This goes on when it is back; Ctrl+C ends it."


def to_stdout(text: str) -> None:
    """At once: whoever follows wants to see it now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def to_stderr(text: str) -> None:
    """Where stdout is for something else."""
    sys.stderr.write(text)
    sys.stderr.flush()

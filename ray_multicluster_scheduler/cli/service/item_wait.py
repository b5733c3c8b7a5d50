"""Waiting for an item, and following what it prints; the person at the terminal sees why it does not go on."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import console, is_terminal, say
from ray_multicluster_scheduler.cli.service.client import path_of
from ray_multicluster_scheduler.cli.service.log_follower import Printed

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service
    from ray_multicluster_scheduler.common.exception import SchedulerError

LOOK_AGAIN_S = 0.5
READ_AGAIN_S = 4.0
"""Of a cluster that does not answer, what it has printed is asked for so often."""
BACK_AGAIN_S = 30.0
"""So long a service that was there may be away while somebody waits for an order: it is being started again. Whoever
only looks on waits as long as it takes."""
FIRST_SILENCE_S, _LONGEST_SILENCE_S = 60.0, 960.0
"""After so long without a word of what is followed it is asked for anew. That tells all of it again, so if there was
nothing new it is done half as often each time. A line that is dead, and not merely silent, TCP finds out earlier."""
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
    away is waited for, and what was heard before is not told again. An attempt that cannot be read is left out, which
    is said."""
    from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ServiceUnavailableError

    printed, deadline, number = Printed(write), Deadline(timeout), 0
    silence, unread = _Silence(deadline), _Unread()
    while True:
        left = deadline.left()
        item = wait_until(service, item_id, lambda state: state not in _BEFORE_ITS_START, left, patience=left)
        newest = int(item.get("attempt", 0))
        number = min(number or newest, newest)  # what was not written when it was killed is not known any more
        printed.attempt(number)
        path, attempt = path_of("items", item_id, "logs"), number or None
        try:
            if tail is not None:
                printed.begin_with(_so_far(service, path, attempt, unread), tail)
                tail = None
            if not deadline.over:
                # A silence is no end, but the line may be dead and nobody said so: then another one is made.
                silence.begins()
                for piece in service.stream(path, silence_s=silence.bound_s, follow=True, attempt=attempt):
                    if printed.hear(piece):
                        silence.broken()
                    if deadline.over:
                        break
        except (ServiceUnavailableError, TimeoutError):
            pass  # whether it is over is asked below, and the service waited for
        except ClusterConnectionError as error:
            unread.tell(error)
            was_over = exit_codes.is_over(item["state"])  # then this was the last time
            if not was_over and not deadline.over and not _is_followed(service, item_id, number, deadline):
                continue
        item = wait_until(service, item_id, lambda _: True, patience=deadline.left())
        newest = int(item.get("attempt", 0))
        if deadline.over or (exit_codes.is_over(item["state"]) and newest <= number):
            return item
        if newest > number:
            number += 1
        else:
            time.sleep(LOOK_AGAIN_S)


def _is_followed(service: Service, item_id: str, number: int, deadline: Deadline) -> bool:
    """Is there an attempt after this one, which cannot be read? Else that is asked for again when some time has passed,
    or the item is over before."""
    left = deadline.left()
    until = Deadline(READ_AGAIN_S if left is None else min(READ_AGAIN_S, left))
    while True:
        item = patiently(lambda: service.get(path_of("items", item_id)), deadline.left())
        followed = int(item.get("attempt", 0)) > number
        if followed or until.over or exit_codes.is_over(item["state"]):
            return followed
        time.sleep(LOOK_AGAIN_S)


def _so_far(service: Service, path: str, attempt: int | None, unread: _Unread) -> bytes:
    """What it has printed; nothing, and a word why, of an attempt that never ran or cannot be read any more. Raises
    ClusterConnectionError: then it may be read later, and only the end of it is wanted all the same."""
    from ray_multicluster_scheduler.common.exception import ConfigurationError, ResultLostError, TaskSubmissionError

    try:
        return service.fetch(path, attempt=attempt)
    except (ResultLostError, TaskSubmissionError, ConfigurationError) as error:
        unread.tell(error)
        return b""


class _Unread:
    """Why something cannot be read is said, and not again and again."""

    def __init__(self) -> None:
        self._said = ""

    def tell(self, error: SchedulerError) -> None:
        if error.message != self._said:
            self._said = error.message
            say(f"what it printed cannot be had: {error.message}")


class _Silence:
    """How long nothing may come on a line before another one is made; no longer than somebody wants to wait."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._now_s = self._next_s = FIRST_SILENCE_S

    def begins(self) -> None:
        """On another line."""
        self._now_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_SILENCE_S)

    def broken(self) -> None:
        """By news: this line may be silent no longer than the first one."""
        self._now_s = self._next_s = FIRST_SILENCE_S

    def bound_s(self) -> float:
        left = self._deadline.left()
        return self._now_s if left is None else max(0.1, min(self._now_s, left))


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

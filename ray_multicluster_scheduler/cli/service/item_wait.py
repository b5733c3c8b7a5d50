"""Waits for an item and follows its output, through restarts of the service; shows why the item is waiting."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import ProgressLine, notify, to_stdout
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.common.exception import (
    ClusterConnectionError,
    ConfigurationError,
    ResultLostError,
    SchedulerError,
    ServiceUnavailableError,
    TaskSubmissionError,
)

POLL_S = 0.5
REREAD_S = 4.0
"""Interval of reading output from a cluster that does not answer."""
RESTART_S = 30.0
"""How long a service may be away, since it is being restarted, while a command waits for an item. A command that only
watches waits without limit."""
STREAM_TIMEOUT_S, _MAX_STREAM_TIMEOUT_S = 60.0, 960.0
"""A followed stream without data is reopened after this time, doubled each time: a reopened stream starts from the
beginning. A dead connection is detected earlier by TCP."""
_BEFORE_START = frozenset({"PENDING", "QUEUED", "DISPATCHING", "RETRYING", "LOST"})
_REMEMBERED = 2_000_000
"""Characters of output that are remembered: more than a service keeps of a task's output."""
_END = {"job": "stop", "task": "cancel"}


class Deadline:
    """The end of a wait; None: no limit."""

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds; None: no limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at

    def at_most(self, seconds: float) -> float:
        """So many seconds, or what is left if that is less."""
        left = self.left()
        return seconds if left is None else min(seconds, left)


def retry_while_away(ask: Callable[[], Any], patience: float | None = RESTART_S) -> Any:
    """Repeat a request while the service does not answer, for ``patience`` seconds or without limit. Prints one message
    when it goes away, and one when it is back. A refusal is not retried."""
    deadline, notified = Deadline(patience), False
    while True:
        try:
            answer = ask()
        except (ServiceUnavailableError, TimeoutError) as error:
            if deadline.over:
                raise
            if not notified:
                notify(away_message(error))
                notified = True
            time.sleep(POLL_S)
            continue
        if notified:
            notify("the service answers again")
        return answer


def away_message(error: Exception) -> str:
    """The message while the service is away: the cause, and what the command does."""
    why = str(getattr(error, "message", "")) or "the service does not answer any more."
    return f"{why} This continues when it is back; Ctrl+C stops it."


def wait_until(
    service: Service,
    item_id: str,
    enough: Callable[[str], bool],
    timeout: float | None = None,
    patience: float | None = RESTART_S,
) -> dict[str, Any]:
    """The item when its state is enough, or the time is over. Shows why it is waiting. ``patience`` is that of
    :func:`retry_while_away`."""
    deadline = Deadline(timeout)
    with ProgressLine() as progress:
        while True:
            item = retry_while_away(lambda: service.get(api_path("items", item_id)), patience)
            if enough(item["state"]) or deadline.over:
                return dict(item)
            explanation = retry_while_away(lambda: service.get(api_path("items", item_id, "explain")), patience)
            sentence = str(explanation.get("sentence") or "").partition("\n")[0]
            progress.show(f"{item['id']} is {item['state']}{f': {sentence}' if sentence else ''}")
            time.sleep(deadline.at_most(POLL_S))


def follow(
    service: Service,
    item_id: str,
    write: Callable[[str], object],
    timeout: float | None = None,
    tail: int | None = None,
) -> dict[str, Any]:
    """Write the output of an item as it arrives, until the item or the time is over; returns the item.

    Follows attempt after attempt; ``tail`` limits the earlier output of the first one. Waits for a service that is away
    and writes nothing twice. An attempt whose output cannot be read is skipped with a message."""
    output, deadline, number = LogFollower(write), Deadline(timeout), 0
    idle, errors = _StreamTimeout(deadline), _ReadErrors()
    while True:
        left = deadline.left()
        item = wait_until(service, item_id, lambda state: state not in _BEFORE_START, left, patience=left)
        newest = int(item.get("attempt", 0))
        number = min(number or newest, newest)  # a killed service may have lost the latest attempt
        output.start_attempt(number)
        path, attempt = api_path("items", item_id, "logs"), number or None
        try:
            if tail is not None:
                output.begin_with(_read_so_far(service, path, attempt, errors), tail)
                tail = None
            if not deadline.over:
                idle.next_stream()
                for chunk in service.stream(path, timeout=idle.seconds, follow=True, attempt=attempt):
                    if output.feed(chunk):
                        idle.reset()
                    if deadline.over:
                        break
        except (ServiceUnavailableError, TimeoutError):
            pass  # the loop below waits for the service and checks whether the item is over
        except ClusterConnectionError as error:
            errors.report(error)
            was_over = exit_codes.is_over(item["state"])  # then there is nothing more to read
            if not was_over and not deadline.over and not _next_attempt_began(service, item_id, number, deadline):
                continue
        item = wait_until(service, item_id, lambda _: True, patience=deadline.left())
        newest = int(item.get("attempt", 0))
        if deadline.over or (exit_codes.is_over(item["state"]) and newest <= number):
            return item
        if newest > number:
            number += 1
        else:
            time.sleep(POLL_S)


def _next_attempt_began(service: Service, item_id: str, number: int, deadline: Deadline) -> bool:
    """Waits REREAD_S for an attempt after this one, whose output cannot be read, or until the item is over."""
    until = Deadline(deadline.at_most(REREAD_S))
    while True:
        item = retry_while_away(lambda: service.get(api_path("items", item_id)), deadline.left())
        began = int(item.get("attempt", 0)) > number
        if began or until.over or exit_codes.is_over(item["state"]):
            return began
        time.sleep(POLL_S)


def _read_so_far(service: Service, path: str, attempt: int | None, errors: _ReadErrors) -> bytes:
    """The output until now; nothing, and a message, for an attempt that never ran or cannot be read any more. Raises
    ClusterConnectionError if it may be readable later."""
    try:
        return service.fetch(path, attempt=attempt)
    except (ResultLostError, TaskSubmissionError, ConfigurationError) as error:
        errors.report(error)
        return b""


class _ReadErrors:
    """Prints why output cannot be read, once for each reason."""

    def __init__(self) -> None:
        self._last = ""

    def report(self, error: SchedulerError) -> None:
        if error.message != self._last:
            self._last = error.message
            notify(f"the output cannot be read: {error.message}")


class _StreamTimeout:
    """After how long without data a stream is reopened; bounded by the deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._now_s = self._next_s = STREAM_TIMEOUT_S

    def next_stream(self) -> None:
        self._now_s, self._next_s = self._next_s, min(2 * self._next_s, _MAX_STREAM_TIMEOUT_S)

    def reset(self) -> None:
        """New data arrived."""
        self._now_s = self._next_s = STREAM_TIMEOUT_S

    def seconds(self) -> float:
        left = self._deadline.left()
        return self._now_s if left is None else max(0.1, min(self._now_s, left))


class LogFollower:
    """Writes the output of an attempt. A reopened stream starts from the beginning; what was written is skipped.

    The texts are compared, not only counted: a service that was killed may have lost the last seconds of a task's
    output, so the new stream differs from some line on, and that line is written again."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write, self._number = write, -1
        self._new_decoder = codecs.getincrementaldecoder("utf-8")
        self._clear(0)
        self.start_attempt(-1)

    def start_attempt(self, number: int) -> None:
        """The next data is the beginning of this attempt."""
        if number != self._number:
            self._number = number
            self._clear(0)
        self._written = "".join(self._pieces)
        self._at, self._repeating = 0, bool(self._written)
        self._decoder = self._new_decoder("replace")

    def begin_with(self, data: bytes, lines: int) -> None:
        """Write the last lines of this and treat all of it as written."""
        text = data.decode(errors="replace")
        last = last_lines(text, lines)
        if last:
            self._write(last)
        self._remember(text)
        self.start_attempt(self._number)

    def feed(self, chunk: bytes) -> bool:
        """Write what is new in it. Was there anything?"""
        text = self._decoder.decode(chunk)
        again = ""
        if self._repeating:
            again, text = self._split_new(text)
        if text:
            self._remember(text)
            self._write(again + text)
        return bool(text)

    def _split_new(self, text: str) -> tuple[str, str]:
        """The beginning of a line that has to be written again, and the new part of this text."""
        forgotten = min(len(text), max(0, self._dropped - self._at))  # assumed to be unchanged
        self._at, text = self._at + forgotten, text[forgotten:]
        place = self._at - self._dropped
        if self._written.startswith(text, place):
            self._at += len(text)
            self._repeating = place + len(text) < len(self._written)
            return "", ""
        pairs = zip(text, self._written[place : place + len(text)], strict=False)
        same = next((at for at, (new, old) in enumerate(pairs) if new != old), len(self._written) - place)
        place, self._repeating = place + same, False
        if place == len(self._written):
            return "", text[same:]
        line = self._written[self._written.rfind("\n", 0, place) + 1 : place]
        self._clear(self._dropped)
        self._remember(self._written[:place])
        return ("" if self._written.endswith("\n") else "\n") + line, text[same:]

    def _clear(self, dropped: int) -> None:
        """``dropped`` is the number of characters before those that are remembered."""
        self._pieces: list[str] = []
        self._size, self._dropped = 0, dropped

    def _remember(self, text: str) -> None:
        self._pieces.append(text)
        self._size += len(text)
        if self._size > 2 * _REMEMBERED:
            joined, excess = "".join(self._pieces), self._size - _REMEMBERED
            self._pieces, self._size, self._dropped = [joined[excess:]], _REMEMBERED, self._dropped + excess


def last_lines(text: str, lines: int | None) -> str:
    """The last lines of a text; None: all."""
    if lines is None:
        return text
    parts = re.findall(r"[^\n]*\n|[^\n]+", text)
    return "".join(parts[max(0, len(parts) - lines) :])


def print_log(
    service: Service, item_id: str, *, until_over: bool, tail: int | None, group: str = "task", **query: object
) -> None:
    """Print the output of an item. With ``until_over``, follow it, and exit with the code for the final state."""
    if until_over:
        with interruptible(service, item_id, cancel=False, group=group):
            item = follow(service, item_id, to_stdout, tail=tail)
        raise typer.Exit(exit_codes.exit_code_of(item["state"]))
    log = service.fetch(api_path("items", item_id, "logs"), **query)
    if not log:
        item = service.get(api_path("items", item_id))
        if item["attempt"] == 0:
            notify(f"{item_id} has printed nothing: it is {item['state']}, and has not started")
    to_stdout(last_lines(log.decode(errors="replace"), tail))


def cancel_outcome(answer: dict[str, Any]) -> str:
    """Reports the effect of a cancel: a waiting item ends at once, a running one a little later."""
    state = str(answer["state"])
    if not answer.get("changed", True):
        return f"has already ended: {state}"
    return "is cancelled" if state == "CANCELLED" else "is being cancelled"


def continuation_hint(item_id: str, group: str = "task") -> str:
    """Commands to follow and to end an item that continues; ``group`` is the group of the named commands."""
    follow_it, end_it = f"`rmcs {group} logs -f {item_id}`", f"`rmcs {group} {_END[group]} {item_id}`"
    return f"{item_id} continues; follow it with {follow_it}, end it with {end_it}"


@contextmanager
def interruptible(service: Service, item_id: str, *, cancel: bool, group: str = "task") -> Iterator[None]:
    """Ctrl+C ends the wait; the item is cancelled, or it continues and a message says how to follow it."""
    try:
        yield
    except KeyboardInterrupt:
        if cancel:
            answer = service.change(api_path("items", item_id, "cancel"), {"reason": "Ctrl+C at `rmcs`"})
            notify(f"{item_id} {cancel_outcome(answer)}")
        else:
            notify(continuation_hint(item_id, group))
        raise typer.Exit(exit_codes.INTERRUPTED) from None

"""Logging: silent as a library; text or JSON lines when a command or the service asks for it.

A line about an item carries what identifies it as extras, which both formats show:

    log.info("placed", extra={"id": task.id, "attempt": 1, "cluster": "mac", "reason": "highest_score"})
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from ray_multicluster_scheduler.common.control_characters import as_json_escapes, escaped, escaped_lines

ROOT = "ray_multicluster_scheduler"
EXTRAS = ("id", "attempt", "cluster", "reason")
"""The extras that both formats know; others are the caller's own business."""
ACTION_EXTRAS = ("action", "subject", "user", "token", "details")
"""Those of a line about what somebody did, for JSON only: in a text they stand in the message."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
GATHER_S = 0.05
"""So long a line may wait for others where lines are gathered."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())


def get_logger(name: str) -> logging.Logger:
    """The logger of a module (``__name__``), or of a part by a short name, always below our root."""
    return logging.getLogger(name if name == ROOT or name.startswith(f"{ROOT}.") else f"{ROOT}.{name}")


def configure(level: int | str = logging.INFO, *, json: bool = False, stream: TextIO | None = None) -> None:
    """For commands and the service, never for library code: write our log to ``stream`` (default: stderr).

    A second call replaces what the first one set up. Raises ValueError for an unknown level.
    """
    root = logging.getLogger(ROOT)
    root.setLevel(level)
    for old in [handler for handler in root.handlers if isinstance(handler, _OurHandler)]:
        root.removeHandler(old)
    handler = _OurHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    root.addHandler(handler)
    root.propagate = False  # else a program that configured the root logger would show each line twice


def level_now() -> str:
    """The least that is written, as one of LEVELS."""
    least = logging.getLogger(ROOT).getEffectiveLevel()
    return next((name for name in LEVELS if least <= logging.getLevelNamesMapping()[name]), LEVELS[-1])


def set_level(level: str) -> None:
    """From now on, whatever :func:`configure` said. Raises ValueError for what is not one of LEVELS."""
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}")
    logging.getLogger(ROOT).setLevel(level)


def writes_json() -> bool:
    """Is our log written as JSON lines?"""
    ours = [one for one in logging.getLogger(ROOT).handlers if isinstance(one, _OurHandler)]
    return any(isinstance(one.formatter, JsonFormatter) for one in ours)


def is_configured() -> bool:
    """Has somebody asked for our log already?"""
    return any(isinstance(handler, _OurHandler) for handler in logging.getLogger(ROOT).handlers)


class _OurHandler(logging.StreamHandler[TextIO]):
    """Known by its class, so that a second ``configure`` finds it and leaves other people's handlers alone.

    While it gathers, lines are written together; one of a warning or worse is written at once, behind those before it.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._gathers = False
        self._lines: list[str] = []
        self._process = os.getpid()
        self._some = threading.Event()
        self._no_more = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if not self._gathers:
            super().emit(record)
            return
        try:
            self._lines.append(self.format(record))
        except Exception:  # noqa: BLE001 - as any handler of the standard library does
            self.handleError(record)
        if os.getpid() != self._process:  # a fork has no thread that writes, and its parent has what was gathered
            self._lines = self._lines[-1:]
            self._write()
            return
        if record.levelno >= logging.WARNING:
            self.flush()
        elif not self._some.is_set():
            self._some.set()

    def gather(self) -> None:
        """From now on."""
        self._no_more.clear()
        self._gathers = True
        threading.Thread(target=self._write_now_and_then, name="rmcs-log", daemon=True).start()

    def gather_no_more(self) -> None:
        """What was gathered is written."""
        self._gathers = False
        self._no_more.set()
        self._some.set()
        self.flush()

    def flush(self) -> None:
        """Also called at the end of the process."""
        if os.getpid() == self._process:  # else its parent has them, too
            self._write()

    def _write(self) -> None:
        """Nobody may fail because nobody can be told: what cannot be written is gone, as it is with any handler."""
        with self.lock or threading.RLock():
            lines, self._lines = self._lines, []
            try:
                if lines:
                    self.stream.write("\n".join([*lines, ""]))
                super().flush()
            except (OSError, ValueError):  # a pipe that nobody reads, a full disk; a stream that was closed
                return

    def _write_now_and_then(self) -> None:
        while not self._no_more.is_set():
            self._some.wait()
            self._no_more.wait(GATHER_S)
            self._some.clear()  # before they are written: whoever comes later wakes us again
            self.flush()


@contextmanager
def lines_together() -> Iterator[None]:
    """For a service, which says something of every step of every item: its lines are written many at a time."""
    ours = [one for one in logging.getLogger(ROOT).handlers if isinstance(one, _OurHandler)]
    asked = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    caller = logging._srcfile
    if ours:  # neither of our formats shows who wrote a line, and it is found out anew for each
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
        logging._srcfile = None  # the documented way to say that nobody asks for the calling line
    for one in ours:
        one.gather()
    try:
        yield
    finally:
        for one in ours:
            one.gather_no_more()
        logging.logThreads, logging.logProcesses, logging.logMultiprocessing = asked
        logging._srcfile = caller


def about_item(item_id: str, attempt: int | None, cluster: str | None, reason: str) -> dict[str, Any]:
    """The extras of a line about an item."""
    return {"id": item_id, "attempt": attempt, "cluster": cluster, "reason": reason}


def extras_of(record: logging.LogRecord) -> dict[str, Any]:
    """The known extras that this record has, in a fixed order."""
    has = record.__dict__
    return {name: has[name] for name in EXTRAS if has.get(name) is not None}


_second: tuple[int, str] = (0, "1970-01-01T00:00:00")
"""The last one that was written out: most lines are of the same as the line before."""


def _utc(created: float) -> str:
    global _second  # noqa: PLW0603 - one tuple, put in place whole: any thread may do it
    second, text = _second
    whole = int(created)
    if whole != second:
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        _second = whole, text
    return f"{text}.{int(created % 1 * 1000):03d}Z"


class TextFormatter(logging.Formatter):
    """``2025-11-15T02:53:01.123Z INFO placed id=t-1 attempt=1 cluster=mac``"""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_utc(record.created)} {record.levelname} {escaped(record.getMessage())}"
        for name, value in extras_of(record).items():
            line += f" {name}={escaped(str(value))}"
        return f"{line}\n{self._indented(record)}" if record.exc_info else line

    def _indented(self, record: logging.LogRecord) -> str:
        """What an exception says may have lines that look like ours: none of them begins where ours do."""
        text = escaped_lines(self.formatException(record.exc_info)) if record.exc_info else ""
        return "\n".join(f"  {line}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what is not JSON is written as text. A line about an item has all of EXTRAS, with null
    for what it has not, as the cluster of one that waits."""

    def format(self, record: logging.LogRecord) -> str:
        has = record.__dict__
        entry = {
            "time": _utc(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **(extras_of(record) if has.get("id") is None else {name: has.get(name) for name in EXTRAS}),
            **{name: has[name] for name in ACTION_EXTRAS if has.get(name) is not None},
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return as_json_escapes(json.dumps(entry, ensure_ascii=False, default=str))

"""Logging setup: no output by default; ``configure`` makes a command or the service write text or JSON lines, and
``batched_lines`` makes a thread write them in batches.

A record about an item names it in extras, which both formats show:

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
"""The extras that both formats write; other extras are ignored."""
ACTION_EXTRAS = ("action", "subject", "user", "token", "details")
"""Extras of a record about an operator's action. Only JSON lines have them; in text the message contains them."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FLUSH_INTERVAL_S = 0.05
"""The longest time that a buffered line waits to be written."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())


def get_logger(name: str) -> logging.Logger:
    """The logger of a module (``__name__``) or of a short name, always below ROOT."""
    return logging.getLogger(name if name == ROOT or name.startswith(f"{ROOT}.") else f"{ROOT}.{name}")


def configure(level: int | str = logging.INFO, *, json: bool = False, stream: TextIO | None = None) -> None:
    """Write our log to ``stream`` (default: stderr). For commands and the service, never for library code.

    A second call replaces the handler of the first. Raises ValueError for an unknown level.
    """
    root = logging.getLogger(ROOT)
    root.setLevel(level)
    for old in _own_handlers():
        root.removeHandler(old)
    handler = _BufferedHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    root.addHandler(handler)
    root.propagate = False  # else a program that configured the root logger would show each line twice


def level_now() -> str:
    """The lowest level that is written, as one of LEVELS."""
    least = logging.getLogger(ROOT).getEffectiveLevel()
    return next((name for name in LEVELS if least <= logging.getLevelNamesMapping()[name]), LEVELS[-1])


def set_level(level: str) -> None:
    """Change the level that :func:`configure` set. Raises ValueError if it is not one of LEVELS."""
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}")
    logging.getLogger(ROOT).setLevel(level)


def writes_json() -> bool:
    """Whether our log is written as JSON lines."""
    return any(isinstance(one.formatter, JsonFormatter) for one in _own_handlers())


def is_configured() -> bool:
    """Whether :func:`configure` was called."""
    return bool(_own_handlers())


def _own_handlers() -> list[_BufferedHandler]:
    return [one for one in logging.getLogger(ROOT).handlers if isinstance(one, _BufferedHandler)]


class _BufferedHandler(logging.StreamHandler[TextIO]):
    """Our handler; its class distinguishes it from handlers that the program installed.

    With buffering on, a thread writes lines in batches. A warning or an error flushes the buffer at once.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._buffering = False
        self._lines: list[str] = []
        self._process = os.getpid()
        self._has_lines = threading.Event()
        self._stopped = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if not self._buffering:
            super().emit(record)
            return
        try:
            self._lines.append(self.format(record))
        except Exception:  # noqa: BLE001 - as any handler of the standard library does
            self.handleError(record)
        if os.getpid() != self._process:  # a forked child has no writer thread, and its parent writes the buffer
            self._lines = self._lines[-1:]
            self._write()
            return
        if record.levelno >= logging.WARNING:
            self.flush()
        elif not self._has_lines.is_set():
            self._has_lines.set()

    def start_buffering(self) -> None:
        """Write lines in batches, by a thread."""
        self._stopped.clear()
        self._buffering = True
        threading.Thread(target=self._write_periodically, name="rmcs-log", daemon=True).start()

    def stop_buffering(self) -> None:
        """Write the buffer and end the thread; later lines are written at once."""
        self._buffering = False
        self._stopped.set()
        self._has_lines.set()
        self.flush()

    def flush(self) -> None:
        """Also called at the end of the process."""
        if os.getpid() == self._process:  # a forked child would write its parent's lines again
            self._write()

    def _write(self) -> None:
        """Write the buffer. Lines that cannot be written are dropped: logging must not make its caller fail."""
        with self.lock or threading.RLock():
            lines, self._lines = self._lines, []
            try:
                if lines:
                    self.stream.write("\n".join([*lines, ""]))
                super().flush()
            except (OSError, ValueError):  # a closed pipe or stream, a full disk
                return

    def _write_periodically(self) -> None:
        while not self._stopped.is_set():
            self._has_lines.wait()
            self._stopped.wait(FLUSH_INTERVAL_S)
            self._has_lines.clear()  # before writing, so that a line added later sets it again
            self.flush()


@contextmanager
def batched_lines() -> Iterator[None]:
    """Write lines in batches inside this context: a service logs every step of every item."""
    ours = _own_handlers()
    saved = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    caller = logging._srcfile
    if ours:  # collected for each record, but neither of our formats shows them
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
        logging._srcfile = None  # the documented way to turn off the search for the calling line
    for one in ours:
        one.start_buffering()
    try:
        yield
    finally:
        for one in ours:
            one.stop_buffering()
        logging.logThreads, logging.logProcesses, logging.logMultiprocessing = saved
        logging._srcfile = caller


def about_item(item_id: str, attempt: int | None, cluster: str | None, reason: str) -> dict[str, Any]:
    """The extras of a record about an item."""
    return {"id": item_id, "attempt": attempt, "cluster": cluster, "reason": reason}


def extras_of(record: logging.LogRecord) -> dict[str, Any]:
    """The known extras that this record has, in a fixed order."""
    has = record.__dict__
    return {name: has[name] for name in EXTRAS if has.get(name) is not None}


_second: tuple[int, str] = (0, "1970-01-01T00:00:00")
"""The last second that was formatted, cached because consecutive lines mostly share it."""


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
        """The traceback, indented, so that no line of an exception's message can pass for a log line."""
        text = escaped_lines(self.formatException(record.exc_info)) if record.exc_info else ""
        return "\n".join(f"  {line}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per line; other values are written as text. A line about an item has all of EXTRAS, null where
    unset, such as the cluster of a waiting item."""

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

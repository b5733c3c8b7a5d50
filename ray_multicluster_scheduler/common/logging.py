"""Logging: silent as a library; text or JSON lines when a command or the service asks for it.

A line about an item carries what identifies it as extras, which both formats show:

    log.info("placed", extra={"id": task.id, "attempt": 1, "cluster": "mac", "reason": "highest_score"})
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

ROOT = "ray_multicluster_scheduler"
EXTRAS = ("id", "attempt", "cluster", "reason")
"""The extras that both formats know; others are the caller's own business."""

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


def is_configured() -> bool:
    """Has somebody asked for our log already?"""
    return any(isinstance(handler, _OurHandler) for handler in logging.getLogger(ROOT).handlers)


class _OurHandler(logging.StreamHandler[TextIO]):
    """Known by its class, so that a second ``configure`` finds it and leaves other people's handlers alone."""


def extras_of(record: logging.LogRecord) -> dict[str, Any]:
    """The known extras that this record has, in a fixed order."""
    found = {name: getattr(record, name, None) for name in EXTRAS}
    return {name: value for name, value in found.items() if value is not None}


def _utc(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created % 1 * 1000):03d}Z"


class TextFormatter(logging.Formatter):
    """``2025-11-15T02:53:01.123Z INFO placed id=t-1 attempt=1 cluster=mac``"""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_utc(record.created)} {record.levelname} {record.getMessage()}"
        line += "".join(f" {name}={value}" for name, value in extras_of(record).items())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what is not JSON is written as text."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _utc(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **extras_of(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)

"""Formats and parses times: "5m ago" for people, ISO 8601 for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

UNKNOWN = "–"
_EPOCH = 1e9
"""Smaller numbers are not treated as times (2001 is the earliest), whatever their names are."""
_STEPS = ((86_400, "d"), (3600, "h"), (60, "m"))
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def duration(seconds: float) -> str:
    """In two or three digits: 45s, 90m, 36h, 2d."""
    for size, unit in _STEPS:
        if seconds >= 2 * size:
            return f"{int(seconds / size)}{unit}"
    return f"{max(seconds, 0):.0f}s"


def ago(then: float | None, now: float) -> str:
    """Formats a time relative to now, past or future."""
    if then is None:
        return UNKNOWN
    return f"in {duration(then - now)}" if then > now + 1 else f"{duration(now - then)} ago"


def parse_duration(text: str) -> float | None:
    """Seconds of 90s, 15m, 12h or 30d; None: it is no duration."""
    try:
        found = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        return None
    return found if 0 < found < 100 * 365 * 86_400 else None


def parse_time(text: str, now: float) -> float | None:
    """The time of "12h" ago, or an ISO 8601 time, local if it names no zone; None: it is no time."""
    seconds = parse_duration(text)
    if seconds is not None:
        return now - seconds
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_iso_times(data: Any) -> Any:
    """The same data with times as text; numbers are times if their keys are ``at``, ``since``, ``…_at`` or similar."""
    if isinstance(data, dict):
        return {key: iso(one) if _is_time(key, one) else with_iso_times(one) for key, one in data.items()}
    if isinstance(data, (list, tuple)):
        return [with_iso_times(one) for one in data]
    return data


def _is_time(key: object, value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not _EPOCH <= value < 100 * _EPOCH:
        return False
    return key in ("at", "since", "until") or str(key).endswith(("_at", "_since", "_until"))

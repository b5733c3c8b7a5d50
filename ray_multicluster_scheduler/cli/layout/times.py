"""Times: how long ago for people, ISO 8601 for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

UNKNOWN = "–"
_EPOCH = 1e9
"""Smaller numbers are no moments after 2001, whatever their names look like."""
_STEPS = ((86_400, "d"), (3600, "h"), (60, "m"))
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def length(seconds: float) -> str:
    """Two or three digits are enough: 45s, 90m, 36h, 2d."""
    for size, unit in _STEPS:
        if seconds >= 2 * size:
            return f"{int(seconds / size)}{unit}"
    return f"{max(seconds, 0):.0f}s"


def ago(then: float | None, now: float) -> str:
    """When it was, or will be."""
    if then is None:
        return UNKNOWN
    return f"in {length(then - now)}" if then > now + 1 else f"{length(now - then)} ago"


def seconds_of(text: str) -> float | None:
    """What 90s, 15m, 12h or 30d means; None: it is no time."""
    try:
        found = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        return None
    return found if 0 < found < 100 * 365 * 86_400 else None


def moment_of(text: str, now: float) -> float | None:
    """When 12h ago was, or what an ISO 8601 time says, which is local where it names no zone; None: it is no time."""
    lasts = seconds_of(text)
    if lasts is not None:
        return now - lasts
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_iso_times(data: Any) -> Any:
    """The same data, its moments as text; they are known by their names (``at``, ``since``, ``…_at``, ``…_since``,
    ``…_until``)."""
    if isinstance(data, dict):
        return {key: iso(one) if _is_moment(key, one) else with_iso_times(one) for key, one in data.items()}
    if isinstance(data, (list, tuple)):
        return [with_iso_times(one) for one in data]
    return data


def _is_moment(key: object, value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not _EPOCH <= value < 100 * _EPOCH:
        return False
    return key in ("at", "since", "until") or str(key).endswith(("_at", "_since", "_until"))

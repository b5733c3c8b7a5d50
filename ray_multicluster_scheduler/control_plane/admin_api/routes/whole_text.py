"""Text of which every character is a whole one: half of one (a lone surrogate) cannot be written, nor sent on."""

from __future__ import annotations

HALVES = (b"\\ud", b"\\uD", b"\xed")
"""How half a character begins in JSON. Whole ones may begin so, too."""
_AS_FOUND = frozenset({"home_paths"})
"""Paths as a file system has them, which need not be text."""


def is_text(value: object) -> bool:
    """Text that can be written down and sent on."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def half_text(said: object) -> str | None:
    """Where in what was sent there is half a character; None if nowhere. It may be nested as deep as it likes."""
    left: list[tuple[str, object]] = [("The body", said)]
    while left:
        where, value = left.pop()
        if isinstance(value, str):
            if not is_text(value):
                return where
        elif isinstance(value, dict):
            for key, below in value.items():
                if not is_text(key):
                    return "A name in " + ("the body" if where == "The body" else where)
                if key not in _AS_FOUND:
                    left.append((key, below))
        elif isinstance(value, list):
            left.extend((where, below) for below in value)
    return None

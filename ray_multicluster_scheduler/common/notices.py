"""Notices of the library to the person at the terminal: one line each, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

MAX_NAMED = 5


def notify(text: str) -> None:
    """Print a notice. Never on stdout, which belongs to the user's program."""
    print(f"rmcs: {text}", file=sys.stderr, flush=True)


def shorten(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")

"""Words to the person at the terminal, on stderr; and how much room a terminal has."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_USUAL = 80
"""Columns of a terminal that does not know how many it has."""


def to_stderr(text: str) -> None:
    """A line; before a person it goes on below where the terminal ends, and in a pipe it stays one."""
    write_stderr(f"{fitted(text, sys.stderr)}\n")


def write_stderr(text: str) -> None:
    """As it is, at once. Where there is no room for it, or nobody reads it, nobody can be told of that: what is done is
    done, and its exit code says how it went."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process


def fitted(text: str, stream: TextIO) -> str:
    """The same in lines that fit, if that is a terminal."""
    if not watched(stream):
        return text
    from ray_multicluster_scheduler.cli.layout.lines import folded

    return folded(text, width_of(stream))


def watched(stream: TextIO) -> bool:
    """Is it a terminal?"""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """Columns of this terminal, whatever the others are: stdout may be a pipe where stderr is not."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except (OSError, ValueError):
        return _USUAL

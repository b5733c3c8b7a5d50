"""Exit codes: what became of the work, for scripts."""

from __future__ import annotations

OK = 0
NOT_DONE = 1
"""The command itself could not do what it should: nobody answers, or it was refused."""
USAGE = 2
"""A wrong command line or configuration."""
FAILED = 100
NOT_FINISHED = 101
NOT_FOUND = 102
CANCELLED = 103
INTERRUPTED = 130

_BY_STATE = {
    "SUCCEEDED": OK,
    "FAILED": FAILED,
    "CANCELLED": CANCELLED,
    "STOPPED": CANCELLED,  # a cancelled job in Ray's words
    "EXPIRED": NOT_FOUND,
}


def code_of(state: str) -> int:
    """Of an item in this state, or of a job with this status."""
    return _BY_STATE.get(state, NOT_FINISHED)


def is_over(state: str) -> bool:
    return state in _BY_STATE

"""Exit codes: what became of the work, for scripts."""

from __future__ import annotations

import errno
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError

OK = 0
NOT_DONE = 1
"""The command itself could not do what it should: nobody answers, it was refused, or a disk is full."""
USAGE = 2
"""A wrong command line or configuration."""
FAILED = 100
"""The work, or what was looked at: a cluster that is checked, a run that is judged."""
NOT_FINISHED = 101
NOT_FOUND = 102
"""There is no such thing: an item, a cluster, a token, an owner."""
CANCELLED = 103
INTERRUPTED = 130
NOBODY_READS = 141
"""Whoever read the output stopped reading: as a shell has it of a program that SIGPIPE ended."""


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""What a disk answers that takes nothing more: no mistake of ours, nor of the command line. It is NOT_DONE."""


def no_room(what: str | Path, error: OSError) -> SchedulerError:
    """What to say then."""
    said = f"{what} cannot be written: {error.strerror}."
    return SchedulerError(said, next_step="make room there, or have it written elsewhere")


class NotThereError(ConfigurationError):
    """A name was given that nothing has, such as that of a cluster. It ends a command with NOT_FOUND."""


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

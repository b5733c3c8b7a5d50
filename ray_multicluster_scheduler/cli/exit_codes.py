"""Exit codes of `rmcs`, for scripts, and the errors that select one."""

from __future__ import annotations

import errno
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError

OK = 0
NOT_DONE = 1
"""The command could not do its work: no service answers, it was refused, or a disk is full."""
USAGE = 2
"""A wrong command line or configuration."""
FAILED = 100
"""The work failed, or the checked cluster or recorded run is not well."""
NOT_FINISHED = 101
NOT_FOUND = 102
"""There is no such item, cluster, token or owner."""
CANCELLED = 103
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The reader of the output stopped reading; the code of a program that SIGPIPE ended."""

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""The disk cannot take more: neither a bug nor a usage error, so the exit code is NOT_DONE."""
_BY_STATE = {
    "SUCCEEDED": OK,
    "FAILED": FAILED,
    "CANCELLED": CANCELLED,
    "STOPPED": CANCELLED,  # a cancelled job in Ray's terms
    "EXPIRED": NOT_FOUND,
}


class NotFoundError(ConfigurationError):
    """A name was given that does not exist, such as that of a cluster; exit code NOT_FOUND."""


def disk_error(what: str | Path, error: OSError) -> SchedulerError:
    """The error to report for one of DISK_ERRORS."""
    text = f"{what} cannot be written: {error.strerror}."
    return SchedulerError(text, next_step="free space there, or write it elsewhere")


def exit_code_of(state: str) -> int:
    """The exit code for an item in this state, or for a job with this status."""
    return _BY_STATE.get(state, NOT_FINISHED)


def is_over(state: str) -> bool:
    return state in _BY_STATE

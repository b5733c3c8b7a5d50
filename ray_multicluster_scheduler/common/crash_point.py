"""crash_point(): a named place where a test may have this process killed, as if the power went off there."""

from __future__ import annotations

import os
import signal

VARIABLE = "RMCS_CRASH_AT"
"""``NAME`` or ``NAME:N``: die when that place is passed for the N-th time. For tests only."""

_name, _, _number = os.environ.get(VARIABLE, "").partition(":")
_left = int(_number) if _number.isdecimal() else 1


def crash_point(name: str) -> None:
    """Does nothing, unless the environment asks for the end of the process right here."""
    global _left  # noqa: PLW0603 - one process dies once
    if name == _name:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

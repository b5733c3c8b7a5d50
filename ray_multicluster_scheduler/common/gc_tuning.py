"""collect_seldom(): fewer looks for garbage, for a process that keeps most of what it makes."""

from __future__ import annotations

import gc

_YOUNG = 10_000
_MIDDLE = 20


def collect_seldom() -> None:
    """Once everything is built. What is there by now stays, so nobody has to look through it again; what comes is
    looked through in larger portions. Nothing but cycles waits for that: all else goes when nobody has it any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, gc.get_threshold()[2])

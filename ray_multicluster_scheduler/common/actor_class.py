"""What must be known of an actor's class before it is made somewhere else."""

from __future__ import annotations

import inspect


def is_asynchronous(cls: type) -> bool:
    """Does it have an ``async def`` method? Then all of its methods run on one event loop, as in Ray."""
    return bool(inspect.getmembers(cls, inspect.iscoroutinefunction)) or bool(
        inspect.getmembers(cls, inspect.isasyncgenfunction)
    )

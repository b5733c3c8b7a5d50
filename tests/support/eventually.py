"""Wait for a condition that another task, thread or process makes true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def eventually(
    condition: Callable[[], object], what: Callable[[], str] | None = None, timeout: float = 30.0
) -> None:
    """Let the loop run until the condition holds; fails the test when it never does."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what() if what else condition}"
        await asyncio.sleep(0.005)


def until(holds: Callable[[], object], timeout: float = 30.0) -> None:
    """The same where there is no loop. Raises AssertionError when it does not hold in time."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)

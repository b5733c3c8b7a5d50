"""How our own parts follow a handle: without the threads that carry users' callbacks, and without asking again and
again.

Outside of a cluster a handle has an item, which tells each of its steps. Inside there is none, and Ray tells the end.
Standard library only: a worker loads this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ray_multicluster_scheduler.common.model.states import TaskState

WAITING = frozenset({TaskState.PENDING, TaskState.QUEUED, TaskState.RETRYING})
"""Nothing of it is on a cluster."""


class Watchable(Protocol):
    """What can be followed: every handle."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


def item_of(handle: object) -> Any:
    """The item of a task, a call or an actor of ours; None inside a cluster, and for whatever else it is."""
    item = getattr(handle, "_item", None)
    return item if hasattr(item, "watch") else None


def when_over(handle: Watchable, tell: Callable[[], object]) -> None:
    """Call ``tell`` once it is over, at once if it is; on whatever thread notices, so it must not block or raise."""
    item = item_of(handle)
    if item is None:
        handle.add_done_callback(lambda _: tell())
    else:
        item.watch(lambda _: tell())


def waits(handle: object) -> bool:
    """Is it known to be on no cluster now? Inside of one, what was submitted is Ray's at once."""
    item = item_of(handle)
    return item is not None and item.state in WAITING

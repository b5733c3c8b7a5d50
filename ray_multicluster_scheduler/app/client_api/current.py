"""``current()``: which item is this code running for?"""

from __future__ import annotations

from ray_multicluster_scheduler.common.current_item import CurrentItem, get_current


def current() -> CurrentItem | None:
    """The task or job that this code runs in, with its id, attempt, fence and cluster; None outside of any."""
    return get_current()

"""Keys of the timers. The kind comes first, because ids may contain any character."""

from __future__ import annotations

WAKE = "wake"
"""Something that blocks the queue ends at a known time."""

STARTS = "starts"
"""The oldest attempt that was accepted has had ``start_grace_s`` to start."""


KEEP = "keep"
"""An item has waited so long that capacity may be reserved for it."""


def queue_key(task_id: str) -> str:
    """``queue_timeout`` of a waiting item."""
    return f"queue:{task_id}"


def retry_key(task_id: str) -> str:
    """End of the back-off."""
    return f"retry:{task_id}"


def begin_key(task_id: str) -> str:
    """``start_after`` of an item."""
    return f"begin:{task_id}"


def run_key(task_id: str, attempt: int) -> str:
    """``run_timeout`` of a running attempt."""
    return f"run:{task_id}:{attempt}"


def start_key(task_id: str, attempt: int) -> str:
    """``ready_timeout`` of an actor that is being made."""
    return f"start:{task_id}:{attempt}"


def refresh_key(cluster: str) -> str:
    """The next snapshot of the cluster is due."""
    return f"refresh:{cluster}"


def lost_key(cluster: str) -> str:
    """``lost_after_s`` of a link without contact."""
    return f"lost:{cluster}"


def ahead_key(cluster: str) -> str:
    """Prefetched attempts there have waited too long."""
    return f"ahead:{cluster}"


def split(key: str) -> tuple[str, str]:
    """Kind and subject; for ``run`` and ``start`` the subject is the item's id without the attempt."""
    kind, _, subject = key.partition(":")
    if kind in ("run", "start"):
        subject = subject.rpartition(":")[0]
    return kind, subject

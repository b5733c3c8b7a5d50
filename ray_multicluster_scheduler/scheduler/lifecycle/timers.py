"""Keys of the machine's timers, and the deadlines of attempts that were accepted but have not started.

The kind comes first in a key, because ids may contain any character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import InstructionBuffer
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord

WAKE = "wake"
"""The next time at which a block of the queue ends."""

STARTS = "starts"
"""The oldest attempt that was accepted has had ``start_grace_s`` to start."""

PREEMPT = "preempt"
"""Items wait that may preempt others."""

KEEP = "keep"
"""An item has waited so long that capacity may be reserved for it."""


NOTICE_AFTER_S = 5.0
"""Items on a cluster whose link has been down for this time report it. By then a dead cluster on this machine is known
to be dead."""


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


def grace_key(task_id: str, attempt: int) -> str:
    """End of the grace of an attempt that was asked to save its state and stop."""
    return f"grace:{task_id}:{attempt}"


def room_key(task_id: str) -> str:
    """Room was freed for this item, which should have started by then."""
    return f"room:{task_id}"


def start_key(task_id: str, attempt: int) -> str:
    """``ready_timeout`` of an actor that is being created."""
    return f"start:{task_id}:{attempt}"


def refresh_key(cluster: str) -> str:
    """The next snapshot of the cluster is due."""
    return f"refresh:{cluster}"


def is_refresh(key: str) -> bool:
    """Is it the timer of a snapshot?"""
    return split(key)[0] == "refresh"


def lost_key(cluster: str) -> str:
    """A link has had no contact for ``NOTICE_AFTER_S``, and then for ``lost_after_s``."""
    return f"lost:{cluster}"


def ahead_key(cluster: str) -> str:
    """Prefetched attempts there have waited too long."""
    return f"ahead:{cluster}"


def split(key: str) -> tuple[str, str]:
    """Kind and subject; for ``run``, ``start`` and ``grace`` the subject is the item's id without the attempt."""
    kind, _, subject = key.partition(":")
    if kind in ("run", "start", "grace"):
        subject = subject.rpartition(":")[0]
    return kind, subject


NEW_NODE_GRACE_S = 600.0
"""How long Ray's autoscaler may take to add a node; then the attempts that wait for it are recalled."""

_Line: TypeAlias = "deque[tuple[float, str, int]]"


class StartTimeouts:
    """Two deadline queues, for existing and for new nodes. All entries of a queue have the same timeout, so one timer
    is enough."""

    def __init__(self, records: Mapping[str, TaskRecord], out: InstructionBuffer, grace_s: float) -> None:
        self._records, self._output, self._grace_s = records, out, grace_s
        self._on_existing_nodes: _Line = deque()
        self._on_new_nodes: _Line = deque()
        self._timer_at = 0.0

    def add(self, record: TaskRecord, now: float, *, new_node: bool) -> None:
        """An attempt was accepted now. ``new_node``: its node does not exist yet."""
        line, grace = (self._on_new_nodes, NEW_NODE_GRACE_S) if new_node else (self._on_existing_nodes, self._grace_s)
        self._next_deadline(line)
        line.append((now + grace, record.task.id, record.attempt))
        if STARTS not in self._output.timers or now + grace < self._timer_at:
            self._set_timer(now + grace)

    def expired(self, now: float) -> list[TaskRecord]:
        """The attempts that did not start in time; sets the timer for the next one."""
        late = []
        for line in (self._on_existing_nodes, self._on_new_nodes):
            while (due := self._next_deadline(line)) is not None and due <= now:
                late.append(self._records[line.popleft()[1]])
        times = [line[0][0] for line in (self._on_existing_nodes, self._on_new_nodes) if line]
        if times:
            self._set_timer(min(times))
        return late

    def clear(self) -> None:
        """Forget all deadlines: no item is left."""
        self._on_existing_nodes.clear()
        self._on_new_nodes.clear()
        self._output.clear_timer(STARTS)

    def _set_timer(self, at: float) -> None:
        self._timer_at = at
        self._output.set_timer(STARTS, at)

    def _next_deadline(self, line: _Line) -> float | None:
        """The deadline of the oldest attempt that has not started; drops those that have started or ended."""
        while line:
            due, task_id, attempt = line[0]
            record = self._records.get(task_id)
            if record is not None and record.live and record.attempt == attempt and record.started_at is None:
                return due
            line.popleft()
        return None

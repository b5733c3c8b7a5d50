"""Writing a small message without waiting for the task that writes."""

from __future__ import annotations

import asyncio

from ray_multicluster_scheduler.common.frames import FrameWriter

_SMALL_BYTES = 64 * 1024


def write_at_once(writer: asyncio.StreamWriter | None, outbox: FrameWriter) -> bool:
    """``writer`` is that of a connection whose own task has nothing to write, else None. False: it is left to that
    task, which knows how to wait for a reader that is slower than us."""
    if writer is None or outbox.pending_bytes > _SMALL_BYTES or writer.transport.get_write_buffer_size():
        return False
    writer.write(outbox.take())
    return True

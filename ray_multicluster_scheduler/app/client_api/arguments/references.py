"""Handles inside of arguments, functions and put values: pickled as references, which arrive in the cluster as handles.

Standard library only: it is loaded where the reference is unpickled.
"""

from __future__ import annotations

import weakref
from typing import Any

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.common.frames import Blob
from ray_multicluster_scheduler.common.object_argument import referenced_values
from ray_multicluster_scheduler.common.several_returns import part_of

_known: weakref.WeakValueDictionary[tuple[str, int | None], Any] = weakref.WeakValueDictionary()


def reference_to(handle: Any) -> tuple[Any, ...]:
    """Return what pickle needs for a reference to the value of this handle."""
    reference = handle._item.id, handle.part
    _known[reference] = handle
    return restore_object, reference


def restore_object(name: str, part: int | None) -> Any:
    """Restore a handle: the handle itself in its own program; inside a cluster, one of the value that was sent with the
    call. Raises UnknownItemError elsewhere."""
    known = _known.get((name, part))
    if known is not None:
        return known
    values = referenced_values() if execution_context.inside() else None
    if values is None:
        raise UnknownItemError(
            f"This is the handle of {name}, which belongs to another program or call.",
            task_id=name,
            next_step="wait for its result and pass that",
        )
    from ray_multicluster_scheduler.app.client_api.in_cluster.handle import put_object  # noqa: PLC0415 - inside only

    def make(data: Blob) -> Any:
        value = pickling.loads(data)
        return put_object(value if part is None else part_of(value, part), f"the value of {name}")

    return values.get(name, part, make)

"""The parts of ``ray.util`` that exist here, for programs that used it: ActorPool, as_completed, ``queue``.

Only programs import it. Start with ``queue.py``; the other names stand in ``app/client_api``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ray_multicluster_scheduler.app.client_api.executor.actor_pool import ActorPool
from ray_multicluster_scheduler.app.client_api.handles.as_completed import as_completed as in_order_of_end

__all__ = ["ActorPool", "as_completed"]


def as_completed(
    refs: Iterable[Any],
    chunk_size: int = 10,  # noqa: ARG001 - an argument of Ray's function
    yield_obj_refs: bool = False,
) -> Iterator[Any]:
    """Iterate over the values of handles as they end, or with ``yield_obj_refs`` over the handles. ``chunk_size``, an
    argument of Ray, has no effect. The error of a handle is raised in its place."""
    return (one if yield_obj_refs else one.result() for one in in_order_of_end(refs))

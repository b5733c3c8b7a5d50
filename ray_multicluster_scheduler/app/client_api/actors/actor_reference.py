"""Pickling of actor handles: a reference that is restored inside a cluster, or back in its own program.

Standard library only: it is loaded where the reference is unpickled.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.common.exception import UnknownItemError

_known: weakref.WeakValueDictionary[tuple[str, str | None], Any] = weakref.WeakValueDictionary()


class _Reader(threading.local):
    handle: Any = None


_reader = _Reader()


class ChildReference(NamedTuple):
    """An actor that was created inside a cluster, as it leaves it. ``parent``: fields of the item that created it;
    ``state``: Ray's handle, which only processes of its cluster can unpickle."""

    actor_id: str
    cluster: str
    name: str
    methods: Mapping[str, int]
    parent: tuple[str, int, int, str]
    state: bytes


def remember(ray_name: str, cluster: str | None, handle: Any) -> None:
    """Register a handle that is pickled, so that its reference is restored to the same handle."""
    _known[ray_name, cluster] = _known[ray_name, None] = handle


def restore(ray_name: str, cluster: str | None, methods: Mapping[str, int]) -> Any:
    """Restore a pickled handle: the handle itself in its own program, one that uses Ray inside a cluster. ``methods``
    maps names to their num_returns; empty if they are unknown. Raises UnknownItemError elsewhere."""
    known = [handle for place in (cluster, None) if (handle := _known.get((ray_name, place))) is not None]
    if known:
        # A name may have been reused after its actor ended.
        return next((handle for handle in known if handle._item.outcome is None), known[0])
    if not execution_context.inside():
        raise UnknownItemError(
            f"This is the handle of actor {ray_name!r} of another program.",
            task_id=ray_name,
            cluster=cluster,
            next_step="find a detached actor with get_actor(name); others can be used by their own program only",
        )
    from ray_multicluster_scheduler.app.client_api.in_cluster.actors import rebuild_actor  # noqa: PLC0415 - inside only

    return rebuild_actor(ray_name, cluster, methods)


def set_reader(handle: Any) -> Any:
    """Set the handle whose value this thread unpickles, None for none; returns the previous one."""
    before, _reader.handle = _reader.handle, handle
    return before


def restore_child(*fields: Any) -> Any:
    """Restore an actor that was created inside a cluster, from the fields of its ChildReference: inside that cluster a
    plain handle; in a program one that calls it through a relay. Raises ConfigurationError inside another cluster,
    UnknownItemError in another program."""
    child = ChildReference(*fields)
    if execution_context.inside():
        from ray_multicluster_scheduler.app.client_api.in_cluster.actors import rebuild_child  # noqa: PLC0415 - inside only

        return rebuild_child(child)
    reader = _reader.handle
    if reader is None:
        raise UnknownItemError(
            f"This is the handle of actor {child.name} ({child.actor_id}) of another program.",
            task_id=child.actor_id,
            cluster=child.cluster,
            next_step="use it in the program that received it, as the value of a handle",
        )
    return reader._runtime.children.handle(child, reader._item)

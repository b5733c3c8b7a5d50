"""How the handle of an actor travels: into a cluster as a reference, and back into its program as itself.

Standard library only: it is loaded where the reference arrives.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.common.exception import UnknownItemError

_known: weakref.WeakValueDictionary[tuple[str, str | None], Any] = weakref.WeakValueDictionary()


def remember(ray_name: str, cluster: str | None, handle: Any) -> None:
    """This handle was sent away: should the reference come back, it is the handle again."""
    _known[ray_name, cluster] = _known[ray_name, None] = handle


def restore(ray_name: str, cluster: str | None, methods: Mapping[str, int]) -> Any:
    """What a pickled handle becomes: the handle itself in its own program, one that uses Ray inside a cluster.

    ``methods`` maps names to their num_returns; empty means that they are not known. Raises UnknownItemError elsewhere.
    """
    known = [handle for place in (cluster, None) if (handle := _known.get((ray_name, place))) is not None]
    if known:
        # A name may have been given again after its actor was over.
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

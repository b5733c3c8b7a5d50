"""Which life of its cluster a process belongs to: Ray's session, by the name that the dashboard tells, too."""

from __future__ import annotations

import ray


def session_name() -> str:
    """As this Ray can tell it: newer ones have a public way, older ones only the node that the process joined."""
    ask = getattr(ray.get_runtime_context(), "get_session_name", None)
    if ask is not None:
        return str(ask())
    from ray._private.worker import global_worker  # noqa: PLC0415 - only where there is no public way

    return str(global_worker.node.session_name)

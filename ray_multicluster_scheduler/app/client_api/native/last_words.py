"""What a constructor raised, for whoever waits for the actor: Ray itself tells only its text.

It is kept in the cluster's own store under the actor's id until it is read.
"""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.logging import get_logger

_log = get_logger(__name__)
_NAMESPACE = b"rmcs_last_words"
_MOST_BYTES = 64 * 1024


def leave(error: Exception) -> None:
    """In the actor's process. What cannot be left is told by Ray, as text."""
    import ray  # noqa: PLC0415 - inside a cluster only

    actor = ray.get_runtime_context().get_actor_id()
    try:
        data = pickling.dumps(error)
        if actor is not None and len(data) <= _MOST_BYTES:
            _store()._internal_kv_put(actor.encode(), data, overwrite=True, namespace=_NAMESPACE)
    except Exception as problem:  # noqa: BLE001 - the error itself is raised by the caller, and matters more
        _log.info("%s of actor %s cannot be kept: %s", type(error).__name__, actor, problem)


def read(actor: str) -> Exception | None:
    """What the constructor of this actor raised, once; None if it is not known."""
    data = _store()._internal_kv_get(actor.encode(), namespace=_NAMESPACE)
    if data is None:
        return None
    _store()._internal_kv_del(actor.encode(), namespace=_NAMESPACE)
    try:
        error = pickling.loads(data)
    except Exception as problem:  # noqa: BLE001 - then its text has to do
        _log.info("what actor %s raised cannot be unpickled here: %s", actor, problem)
        return None
    return error if isinstance(error, Exception) else None


def _store() -> Any:
    from ray.experimental import internal_kv  # noqa: PLC0415 - inside a cluster only

    return internal_kv

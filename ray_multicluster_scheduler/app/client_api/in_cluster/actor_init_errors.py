"""What a constructor raised, for whoever waits for the actor: Ray itself tells only its text.

It is kept in the cluster's own store under the actor's id until it is read. Of many that nobody reads, because nobody
waits for their actors, the newest are kept: what became of the others is told by Ray, as text.
"""

from __future__ import annotations

import time
from typing import Any

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.logging import get_logger

_log = get_logger(__name__)
_NAMESPACE = b"rmcs_last_words"
_MOST_BYTES = 64 * 1024
MOST_KEPT = 100
"""In one cluster, of all programs together: with the most bytes that is 6.4 MB for good in the memory of its head."""


def leave(error: Exception) -> None:
    """In the actor's process. What cannot be left is told by Ray, as text."""
    import ray  # noqa: PLC0415 - inside a cluster only

    actor = ray.get_runtime_context().get_actor_id()
    try:
        data = pickling.dumps(error)
        if actor is not None and len(data) <= _MOST_BYTES:
            key = f"{actor}:{time.time_ns():020d}".encode()
            _store()._internal_kv_put(key, data, overwrite=True, namespace=_NAMESPACE)
            for old in _by_age(b"")[:-MOST_KEPT]:
                _store()._internal_kv_del(old, namespace=_NAMESPACE)
    except Exception as problem:  # noqa: BLE001 - the error itself is raised by the caller, and matters more
        _log.info("%s of actor %s cannot be kept: %s", type(error).__name__, actor, problem)


def read(actor: str) -> Exception | None:
    """What the constructor of this actor raised, once; None if it is not known."""
    data = None
    for key in _by_age(actor.encode()):  # several if it was restarted: the last ones count
        data = _store()._internal_kv_get(key, namespace=_NAMESPACE)
        _store()._internal_kv_del(key, namespace=_NAMESPACE)
    if data is None:
        return None
    try:
        error = pickling.loads(data)
    except Exception as problem:  # noqa: BLE001 - then its text has to do
        _log.info("what actor %s raised cannot be unpickled here: %s", actor, problem)
        return None
    return error if isinstance(error, Exception) else None


def _by_age(prefix: bytes) -> list[bytes]:
    """The keys that begin so, the oldest first as far as the clocks of the nodes agree."""
    keys: list[bytes] = _store()._internal_kv_list(prefix, namespace=_NAMESPACE)
    return sorted(keys, key=lambda key: key.rpartition(b":")[2])


def _store() -> Any:
    from ray.experimental import internal_kv  # noqa: PLC0415 - inside a cluster only

    return internal_kv

"""Converts Ray's errors to ours, so that code inside a cluster gets the same exceptions as programs outside.

Ray passes on only the text of a constructor's exception, so the exception itself is stored in the cluster's key-value
store under the actor's id until it is read. Of unread ones the newest are kept.
"""

from __future__ import annotations

import re
import time
from typing import Any

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.task_errors import as_task_error

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTIONS: tuple[tuple[str, type[errors.SchedulerError], str], ...] = (
    ("TaskCancelledError", errors.TaskCancelledError, "submit it again if that was a mistake"),
    ("RuntimeEnvSetupError", errors.TaskSubmissionError, "correct the runtime_env and submit it again"),
    ("TaskUnschedulableError", errors.NoFeasibleClusterError, "request fewer resources, or those of this cluster"),
    ("ActorUnschedulableError", errors.NoFeasibleClusterError, "request fewer resources, or those of this cluster"),
    ("ActorDiedError", errors.ActorDiedError, "make a new actor; max_restarts lets Ray restart one"),
    ("ActorUnavailableError", errors.ActorDiedError, "try again: Ray may be restarting it"),
    ("ObjectLostError", errors.ResultLostError, "run it again"),
    ("ObjectFetchTimedOutError", errors.ResultLostError, "run it again"),
    ("OutOfMemoryError", errors.WorkerCrashedError, "request more memory, so that fewer run at the same time"),
    ("NodeDiedError", errors.WorkerCrashedError, "run it again, or give it crash_retries"),
    ("WorkerCrashedError", errors.WorkerCrashedError, "see the worker's log in the cluster's dashboard"),
    ("LocalRayletDiedError", errors.WorkerCrashedError, "run it again, or give it crash_retries"),
)
"""Name of Ray's class (not every version of Ray has all), our class, and the next step."""


def translate(error: BaseException, what: str, task_id: str, cluster: str) -> BaseException:
    """Convert one of Ray's exceptions; anything else is returned unchanged."""
    from ray import exceptions as rex  # noqa: PLC0415 - inside a cluster only

    if isinstance(error, rex.RayTaskError):
        return _user_error(error, what, task_id, cluster)
    if not isinstance(error, rex.RayError):
        return error
    known = ((kind, step) for name, kind, step in _EXCEPTIONS if isinstance(error, getattr(rex, name, ())))
    kind, next_step = next(known, (errors.RemoteError, "see the cluster's dashboard"))
    ours = kind(
        f"{what} ({task_id}) on cluster {cluster!r}: {_first_and_last_line(error)}",
        task_id=task_id,
        cluster=cluster,
        next_step=next_step,
    )
    ours.__cause__ = error
    return ours


def _user_error(error: Any, what: str, task_id: str, cluster: str) -> BaseException:
    """Return the user's own exception, as it was raised."""
    from ray import exceptions as rex  # noqa: PLC0415 - inside a cluster only

    note = f"raised in {what} ({task_id}) on cluster {cluster!r}"
    cause = error.cause
    if isinstance(cause, rex.RayTaskError):  # from a task that this one waited for
        return _user_error(cause, what, task_id, cluster)
    text = _COLOURS.sub("", str(error))  # the remote traceback
    if isinstance(cause, rex.RayError) or not isinstance(cause, Exception):
        ours: BaseException = errors.RemoteError(
            f"{text} ({note})", task_id=task_id, cluster=cluster, next_step="see the remote traceback above"
        )
    else:
        ours = as_task_error(cause)
        ours.add_note(note)
    ours.__cause__ = errors.RemoteTraceback(text)
    return ours


def _first_and_last_line(error: BaseException) -> str:
    """Return the event and its cause: the lines between only repeat ids that our message contains."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]])) or type(error).__name__


_log = get_logger(__name__)
_NAMESPACE = b"rmcs_last_words"
_MAX_BYTES = 64 * 1024
MAX_STORED = 100
"""Per cluster, for all programs together: at most 6.4 MB in the memory of its head."""


def store_init_error(error: Exception) -> None:
    """In the actor's process: store the exception of a constructor. If that fails, Ray still passes on its text."""
    import ray  # noqa: PLC0415 - inside a cluster only

    actor = ray.get_runtime_context().get_actor_id()
    try:
        data = pickling.dumps(error)
        if actor is not None and len(data) <= _MAX_BYTES:
            key = f"{actor}:{time.time_ns():020d}".encode()
            _store()._internal_kv_put(key, data, overwrite=True, namespace=_NAMESPACE)
            for old in _by_age(b"")[:-MAX_STORED]:
                _store()._internal_kv_del(old, namespace=_NAMESPACE)
    except Exception as problem:  # noqa: BLE001 - the caller raises the error itself, which matters more
        _log.info("%s of actor %s cannot be kept: %s", type(error).__name__, actor, problem)


def take_init_error(actor: str) -> Exception | None:
    """Remove and return what the constructor of this actor raised; None if it is not stored."""
    data = None
    for key in _by_age(actor.encode()):  # several if it was restarted: the last one counts
        data = _store()._internal_kv_get(key, namespace=_NAMESPACE)
        _store()._internal_kv_del(key, namespace=_NAMESPACE)
    if data is None:
        return None
    try:
        error = pickling.loads(data)
    except Exception as problem:  # noqa: BLE001 - the caller uses its text
        _log.info("the exception of actor %s cannot be unpickled here: %s", actor, problem)
        return None
    return error if isinstance(error, Exception) else None


def _by_age(prefix: bytes) -> list[bytes]:
    """The keys with this prefix, oldest first as far as the clocks of the nodes agree."""
    keys: list[bytes] = _store()._internal_kv_list(prefix, namespace=_NAMESPACE)
    return sorted(keys, key=lambda key: key.rpartition(b":")[2])


def _store() -> Any:
    from ray.experimental import internal_kv  # noqa: PLC0415 - inside a cluster only

    return internal_kv

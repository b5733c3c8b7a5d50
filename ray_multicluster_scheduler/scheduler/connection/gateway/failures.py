"""What Ray's own errors mean to us: whose fault it was, in one sentence."""

from __future__ import annotations

from typing import Any

from ray import exceptions as rex

_CRASHES: tuple[tuple[type[BaseException], str], ...] = (
    (rex.OutOfMemoryError, "OUT_OF_MEMORY"),
    (rex.NodeDiedError, "NODE_DIED"),
    (rex.WorkerCrashedError, "WORKER_DIED"),
    (rex.LocalRayletDiedError, "NODE_DIED"),
    (rex.ObjectStoreFullError, "OBJECT_STORE_FULL"),
    (rex.OutOfDiskError, "OUT_OF_DISK"),
    (rex.ObjectLostError, "OBJECT_LOST"),
)


def describe(error: BaseException | None, cancelled: bool) -> dict[str, Any]:
    """The head of the answer to a call that Ray itself ended."""
    if isinstance(error, rex.TaskCancelledError) or cancelled:
        return {"status": "cancelled"}
    message = str(error).strip()
    base = {"status": "failed", "error_type": type(error).__name__, "message": message[:20_000]}
    if isinstance(error, rex.RuntimeEnvSetupError):
        return {**base, "failure": "permanent", "code": "RUNTIME_ENV_FAILED"}
    for kind, code in _CRASHES:
        if isinstance(error, kind):
            return {**base, "failure": "crash", "code": code}
    if isinstance(error, rex.RayError):
        return {**base, "failure": "crash", "code": "RAY_ERROR"}
    return {**base, "failure": "permanent", "code": "RAY_REFUSED"}

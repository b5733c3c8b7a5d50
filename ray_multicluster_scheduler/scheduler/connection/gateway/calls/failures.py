"""Translates Ray's errors for the runners into the heads of results: status, failure class, code and message."""

from __future__ import annotations

from typing import Any

from ray import exceptions as rex

from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_CRASHES: tuple[tuple[type[BaseException], str], ...] = (
    (rex.OutOfMemoryError, "OUT_OF_MEMORY"),
    (rex.NodeDiedError, "NODE_DIED"),
    (rex.WorkerCrashedError, "WORKER_DIED"),
    (rex.LocalRayletDiedError, "NODE_DIED"),
    (rex.ObjectStoreFullError, "OBJECT_STORE_FULL"),
    (rex.OutOfDiskError, "OUT_OF_DISK"),
    (rex.ObjectLostError, "OBJECT_LOST"),
)

_NEVER_RAN = "The actor never ran"
"""Part of Ray's message, also if the actor's constructor has begun."""


def describe(error: BaseException | None, cancelled: bool) -> dict[str, Any]:
    """The head of the result of a call that Ray itself ended."""
    if isinstance(error, rex.TaskCancelledError):
        return {"status": "cancelled"}
    if cancelled:  # its process was killed, so it may have begun
        return {"status": "cancelled", "code": m.KILLED}
    message = str(error).strip()
    base = {"status": "failed", "error_type": type(error).__name__, "message": message[:20_000]}
    if isinstance(error, rex.RuntimeEnvSetupError):
        if "Failed to download runtime_env file package" in message:  # the control plane uploads it again
            return {**base, "failure": "crash", "code": "PACKAGE_MISSING"}
        return {**base, "failure": "permanent", "code": "RUNTIME_ENV_FAILED"}
    for kind, code in _CRASHES:
        if isinstance(error, kind):
            return {**base, "failure": "crash", "code": code}
    if isinstance(error, rex.RayError):
        return {**base, "failure": "crash", "code": "RAY_ERROR"}
    return {**base, "failure": "permanent", "code": "RAY_REFUSED"}


def lost_its_node(error: BaseException | None) -> bool:
    """Its raylet is dead, which Ray reports before its worker has ended."""
    return isinstance(error, (rex.NodeDiedError, rex.LocalRayletDiedError))


def actor_died(name: str, key: tuple[str, int], why: str, error: BaseException | None = None) -> dict[str, Any]:
    """The head of the result of an actor that failed, and of calls of its methods."""
    gone = isinstance(error, rex.ActorUnavailableError)
    called = f"actor {name} ({key[0]}, attempt {key[1]})" if name else f"actor {key[0]} (attempt {key[1]})"
    return {
        "status": "failed",
        "failure": "crash",
        "code": "ACTOR_UNAVAILABLE" if gone else "ACTOR_DIED",
        "error_type": "ActorUnavailableError" if gone else "ActorDiedError",
        "message": f"{called} {'cannot be reached' if gone else 'is dead'}: {why}",
    }


def exited_by_request(error: BaseException | None) -> bool:
    """True if Ray reports that the actor exited by its own request."""
    return isinstance(error, rex.RayActorError) and "INTENDED_USER_EXIT" in str(error)


def cause_of(error: BaseException | None) -> str:
    """The line with the cause in Ray's long message about a dead actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and _NEVER_RAN in lines[-1]:
        return f"its process ended before its constructor was done (Ray: {lines[-1][:2000]})"
    return lines[-1][:2000] if lines else type(error).__name__

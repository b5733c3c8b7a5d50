"""Ray's errors as ours: the same tree that a program outside of a cluster sees."""

from __future__ import annotations

import re
from typing import Any

from ray_multicluster_scheduler.common import exception as errors

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_KINDS: tuple[tuple[str, type[errors.SchedulerError], str], ...] = (
    ("TaskCancelledError", errors.TaskCancelledError, "submit it again if that was not meant"),
    ("RuntimeEnvSetupError", errors.TaskSubmissionError, "correct the runtime_env and submit it again"),
    ("TaskUnschedulableError", errors.NoFeasibleClusterError, "ask for less, or for what this cluster has"),
    ("ActorUnschedulableError", errors.NoFeasibleClusterError, "ask for less, or for what this cluster has"),
    ("ActorDiedError", errors.ActorDiedError, "make a new actor; max_restarts lets Ray restart one"),
    ("ActorUnavailableError", errors.ActorDiedError, "try again: Ray may be restarting it"),
    ("ObjectLostError", errors.ResultLostError, "run it again"),
    ("ObjectFetchTimedOutError", errors.ResultLostError, "run it again"),
    ("OutOfMemoryError", errors.WorkerCrashedError, "ask for more memory, so that fewer run side by side"),
    ("NodeDiedError", errors.WorkerCrashedError, "run it again, or give it crash_retries"),
    ("WorkerCrashedError", errors.WorkerCrashedError, "see the worker's log in the cluster's dashboard"),
    ("LocalRayletDiedError", errors.WorkerCrashedError, "run it again, or give it crash_retries"),
)
"""Ray's class by its name (not every version of Ray has all), ours, and what to do."""


def translate(error: BaseException, what: str, task_id: str, cluster: str) -> BaseException:
    """What the caller is to be given for something that Ray raised; anything else is returned as it is."""
    from ray import exceptions as rex  # noqa: PLC0415 - inside a cluster only

    if isinstance(error, rex.RayTaskError):
        return _user_error(error, what, task_id, cluster)
    if not isinstance(error, rex.RayError):
        return error
    kind, next_step = _kind(error, rex)
    ours = kind(
        f"{what} ({task_id}) on cluster {cluster!r}: {_first_and_last_line(error)}",
        task_id=task_id,
        cluster=cluster,
        next_step=next_step,
    )
    ours.__cause__ = error
    return ours


def _kind(error: BaseException, rex: Any) -> tuple[type[errors.SchedulerError], str]:
    for name, kind, next_step in _KINDS:
        if isinstance(error, getattr(rex, name, ())):
            return kind, next_step
    return errors.RemoteError, "see the cluster's dashboard"


def _user_error(error: Any, what: str, task_id: str, cluster: str) -> BaseException:
    """The user's own exception, as it was raised."""
    from ray import exceptions as rex  # noqa: PLC0415 - inside a cluster only

    note = f"raised in {what} ({task_id}) on cluster {cluster!r}"
    cause = error.cause
    if isinstance(cause, rex.RayTaskError):  # it came out of a task that this one had waited for
        return _user_error(cause, what, task_id, cluster)
    text = _COLOURS.sub("", str(error))  # the remote traceback
    if isinstance(cause, rex.RayError) or not isinstance(cause, Exception):
        ours: BaseException = errors.RemoteError(
            f"{text} ({note})", task_id=task_id, cluster=cluster, next_step="see the remote traceback above"
        )
    else:
        ours = cause
        ours.add_note(note)
    ours.__cause__ = errors.RemoteTraceback(text)
    return ours


def _first_and_last_line(error: BaseException) -> str:
    """What happened, and why: between the two Ray lists what we have said already."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]])) or type(error).__name__

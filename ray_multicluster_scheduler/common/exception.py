"""Every error this project raises on purpose.

SchedulerError
├── ConfigurationError          clusters.yaml, settings or an argument is wrong
├── NoHealthyClusterError       no cluster that could take the item answers
├── NoFeasibleClusterError      no cluster could ever run it, however long it waits
├── TaskSubmissionError         the item could not be prepared, sent or set up
├── PolicyEvaluationError       a placement policy raised
├── ClusterConnectionError      one cluster could not be reached or joined
├── ClusterLostError            the cluster vanished with the item on it
├── WorkerCrashedError          the worker or node died (crash, OOM, kill)
│   └── ActorDiedError          the actor that was called has ended
├── QueueFullError              max_queue is reached
├── TaskCancelledError          somebody cancelled it
├── TaskTimeoutError            run_timeout, queue_timeout or a caller's timeout
├── ResultLostError             it finished, but its value is gone
├── StoreError                  the durable record cannot be read or written
│   └── StoreFullError          … because there is no room
├── ServiceUnavailableError     the service does not answer, or not now
├── UnknownItemError            no item of this id was ever accepted here
├── NotAllowedError             a service does not let this caller do that
└── RemoteError                 user code failed with something that cannot be rebuilt here

A user's own exception is not in this tree: it comes back as itself, with
:class:`RemoteTraceback` as its ``__cause__`` and a note that names the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def code_of(error: str) -> str:
    """UnknownItemError is UNKNOWN_ITEM to programs that are not written in Python."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", error.removesuffix("Error")).upper()


SERVICE_HEADER = "Rmcs-Api"
"""Every answer of a service has it; answers of older services do not."""


class SchedulerError(Exception):
    """Base of all. ``task_id`` and ``cluster`` say what it happened to, ``next_step`` what to do, and ``code`` what
    `rmcs explain CODE` tells more of."""

    code = "SCHEDULER"

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.code = code_of(cls.__name__)

    def __init__(
        self,
        message: str,
        *,
        task_id: str | None = None,
        cluster: str | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.task_id = task_id
        self.cluster = cluster
        self.next_step = next_step

    def __str__(self) -> str:
        if not self.next_step:
            return self.message
        text = self.message.rstrip().rstrip(".")
        text = text if text.endswith(("!", "?", ":")) else f"{text}."
        # Below a table, the advice is about all of it, not about its last line.
        return f"{text}{chr(10) if chr(10) in text else ' '}What to do: {self.next_step}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.task_id, self.cluster, self.next_step))


def _rebuild(
    kind: type[SchedulerError],
    message: str,
    task_id: str | None,
    cluster: str | None,
    next_step: str | None,
) -> SchedulerError:
    return kind(message, task_id=task_id, cluster=cluster, next_step=next_step)


class ConfigurationError(SchedulerError):
    """clusters.yaml, settings or an argument is wrong; says where and what was expected."""


class NoHealthyClusterError(SchedulerError):
    """No cluster that could take the item answers; the message lists each one's reason."""


class NoFeasibleClusterError(SchedulerError):
    """No cluster could ever run it; the message holds the table of reasons."""


class TaskSubmissionError(SchedulerError):
    """The item could not be prepared, sent or set up (bad pickle, broken runtime_env, …)."""


class PolicyEvaluationError(SchedulerError):
    """A placement filter or score raised."""


class ClusterConnectionError(SchedulerError):
    """One cluster could not be reached, or would not let us in."""


class ClusterLostError(SchedulerError):
    """The cluster vanished while the item was on it."""


class WorkerCrashedError(SchedulerError):
    """The worker process or its node died."""


class ActorDiedError(WorkerCrashedError):
    """The actor has ended; a call that it may have begun is not repeated."""


class QueueFullError(SchedulerError):
    """``max_queue`` items wait already."""


class TaskCancelledError(SchedulerError):
    """The item was cancelled."""


class TaskTimeoutError(SchedulerError, TimeoutError):
    """A time limit passed: run_timeout, queue_timeout, or the caller's own timeout."""


class ResultLostError(SchedulerError):
    """The item finished, but its value can no longer be had."""


class StoreError(SchedulerError):
    """The durable record cannot be read or written."""


class StoreFullError(StoreError):
    """There is no room for more; what is there is safe."""


class ServiceUnavailableError(SchedulerError):
    """The service does not answer, or cannot answer now; the same may be asked again."""


class UnknownItemError(SchedulerError, LookupError):
    """No item of this id was ever accepted by this control plane."""


class NotAllowedError(SchedulerError, PermissionError):
    """A service wants a token, another one, or one with another role."""


class RemoteError(SchedulerError):
    """User code failed with something that cannot be rebuilt in this process."""


class RemoteTraceback(Exception):
    """Carries the traceback text of the other side; shown as the cause of a user's exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


def error_from_problem(problem: Mapping[str, Any]) -> SchedulerError:
    """Convert a problem document to the error that it describes."""
    kind = globals().get(str(problem.get("error")), SchedulerError)
    if not (isinstance(kind, type) and issubclass(kind, SchedulerError)):
        kind = SchedulerError
    return kind(
        str(problem.get("message") or "The service refused the request without a message."),
        task_id=problem.get("task_id"),
        cluster=problem.get("cluster"),
        next_step=problem.get("next_step"),
    )

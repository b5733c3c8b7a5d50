"""The exceptions that this project raises.

SchedulerError
├── ConfigurationError          clusters.yaml, settings or an argument is wrong
│   └── ActorNameTakenError     a living actor has this name already
├── NoHealthyClusterError       no cluster that could run the item is reachable
├── NoFeasibleClusterError      no cluster could ever run it, however long it waits
├── TaskSubmissionError         the item could not be prepared, sent or set up
├── PolicyEvaluationError       a placement policy raised
├── ClusterConnectionError      one cluster could not be reached or joined
├── ClusterLostError            the cluster vanished with the item on it
├── WorkerCrashedError          the worker or node died (crash, OOM, kill)
│   └── ActorDiedError          the actor that was called has ended
├── JobsFailedError             wait_for_all_jobs: some of the jobs failed
├── QueueFullError              max_queue is reached
├── TaskCancelledError          the item was cancelled
├── TaskTimeoutError            run_timeout, queue_timeout or a caller's timeout
├── ResultLostError             the item finished, but its value is lost
├── StoreError                  the durable record cannot be read or written
│   └── StoreFullError          … because the disk or the quota is full
├── ServiceUnavailableError     the service cannot be reached, or cannot answer now
├── UnknownItemError            no item with this id was accepted here
├── InferenceError              a request to a model failed
│   └── InstanceError           an instance of a model cannot be reached, or its answer makes no sense
├── NotAllowedError             the service denies the caller this request
└── RemoteError                 user code raised an exception that cannot be unpickled here

An exception of user code is not in this tree: it is raised again as an instance of its class (and of RayTaskError, for
programs that catch that), with :class:`RemoteTraceback` as its ``__cause__`` and a note that names the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.common.task_errors import RayError, RayTaskError


def code_of(error: str) -> str:
    """The code of an exception class, for REST and scripts: UnknownItemError is UNKNOWN_ITEM."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", error.removesuffix("Error")).upper()


ADVICE = "What to do: "
"""Stands before ``next_step`` in the text of an error."""
SERVICE_HEADER = "Rmcs-Api"
"""Every answer of a service has it; answers of older services do not."""


class SchedulerError(RayError):
    """Base class. ``task_id`` and ``cluster`` name what failed, ``next_step`` is what to do. `rmcs explain CODE`
    explains its ``code``."""

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
        if not self.next_step or ADVICE in self.message:  # the message quotes an error that has its own advice
            return self.message
        text = self.message.rstrip().rstrip(".")
        text = text if text.endswith(("!", "?", ":")) else f"{text}."
        # After a table the advice begins a new line, because it is not about the last row only.
        return f"{text}{chr(10) if chr(10) in text else ' '}{ADVICE}{self.next_step}"

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
    """clusters.yaml, settings or an argument is wrong; the message names it and what was expected."""


class ActorNameTakenError(ConfigurationError, ValueError):
    """A living actor has this name already. A ValueError, too, as in Ray."""


class NoHealthyClusterError(SchedulerError):
    """No cluster that could run the item is reachable; the message lists the reason of each."""


class NoFeasibleClusterError(SchedulerError):
    """No cluster could ever run the item; the message has the table of reasons."""


class TaskSubmissionError(SchedulerError):
    """The item could not be prepared, sent or set up (bad pickle, broken runtime_env, …)."""


class PolicyEvaluationError(SchedulerError):
    """A placement filter or score raised."""


class ClusterConnectionError(SchedulerError):
    """One cluster could not be reached, or refused the connection."""


class ClusterLostError(SchedulerError):
    """The cluster vanished while the item was on it."""


class WorkerCrashedError(SchedulerError):
    """The worker process or its node died."""


class ActorDiedError(WorkerCrashedError):
    """The actor has ended; a call that it may have started is not repeated."""


class JobsFailedError(SchedulerError):
    """Some of the jobs that ``wait_for_all_jobs`` waited for failed; ``statuses`` has the last status of each job."""

    def __init__(self, message: str, *, statuses: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(message, **options)
        self.statuses = dict(statuses or {})

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"statuses": self.statuses})


class QueueFullError(SchedulerError):
    """``max_queue`` items are waiting already."""


class TaskCancelledError(SchedulerError):
    """The item was cancelled."""


class TaskTimeoutError(SchedulerError, TimeoutError):
    """A time limit passed: run_timeout, queue_timeout, or the caller's own timeout."""


class ResultLostError(SchedulerError):
    """The item finished, but its value is lost."""


class StoreError(SchedulerError):
    """The durable record cannot be read or written."""


class StoreFullError(StoreError):
    """The disk or the quota is full. What was stored before is intact."""


class ServiceUnavailableError(SchedulerError):
    """The service cannot be reached, or cannot answer now; the request may be repeated."""


class UnknownItemError(SchedulerError, LookupError, ValueError):
    """No item with this id was accepted by this control plane. A ValueError, too, as Ray's ``get_actor`` raises."""


class NotAllowedError(SchedulerError, PermissionError):
    """The token is missing, invalid, or lacks the role or the ownership for this request."""


class InferenceError(SchedulerError):
    """A request to a model failed: its instance reported an error, or was lost and the request must not be repeated."""


class InstanceError(InferenceError):
    """An instance of a model cannot be reached, or its answer makes no sense. ``sent``: it may have received the
    request. ``gone``: it has ended. ``local``: this process cannot connect to anything. ``status`` and ``retry_after``
    (seconds): of an answer that is an error."""

    sent = True
    gone = False
    local = False
    status: int | None = None
    retry_after: float | None = None


class RemoteError(SchedulerError, RayTaskError):
    """User code raised an exception that cannot be unpickled in this process."""


class RemoteTraceback(Exception):
    """The traceback text from the cluster; the cause of a user's exception."""

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

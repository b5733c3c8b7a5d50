"""The errors of serving that have a sentence of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InferenceError,
    QueueFullError,
    SchedulerError,
    ServiceUnavailableError,
    TaskTimeoutError,
    UnknownItemError,
)
from ray_multicluster_scheduler.serving.models import TaskStatus
from ray_multicluster_scheduler.serving.router.ledger import Instance

if TYPE_CHECKING:
    from ray_multicluster_scheduler.serving.task_tracker import TaskInfo


class TaskIdTakenError(ConfigurationError):
    """The id of a task is that of another request."""


TaskIdTakenError.code = ConfigurationError.code


class BodyTooLargeError(SchedulerError):
    """A body has more bytes than are read."""

    code = "TOO_LARGE"


def check_available(instances: Sequence[Instance], model: str) -> None:
    """Raises SchedulerError if none of these instances of a model can take a pass-through request."""
    if not instances:
        raise UnknownItemError(
            f"No instance of the model {model} is registered.", next_step="use one of GET /v1/models"
        )
    if not any(one.openai for one in instances):
        raise ConfigurationError(
            f"The instances of {model} take no /v1 requests.",
            next_step="use POST /queue/submit, or register an instance with kind: openai",
        )
    if not any(one.accepts and one.openai for one in instances):
        raise ServiceUnavailableError(
            f"None of the {len(instances)} instances of {model} can take a /v1 request now.",
            next_step="try again later; queue_info() shows the instances",
        )


def queue_full(task_id: str, model: str, limit: int) -> QueueFullError:
    return QueueFullError(
        f"{limit:,} requests for {model} wait already, so another one was refused.",
        task_id=task_id,
        next_step="submit it again later, or add instances",
    )


def unknown_task(task_id: str) -> UnknownItemError:
    return UnknownItemError(
        f"There is no task {task_id} here.", task_id=task_id, next_step="check the id; finished tasks expire"
    )


def not_finished(task_id: str, timeout: float | None) -> TaskTimeoutError:
    return TaskTimeoutError(
        f"Task {task_id} has not finished within {timeout:g} s; it goes on.",
        task_id=task_id,
        next_step="wait longer, or ask explain() what it waits for",
    )


def result_of(info: TaskInfo) -> Any:
    if not info.task_status.finished:
        raise SchedulerError("This serving scheduler is closed.", next_step="create another one")
    if info.task_status is TaskStatus.FAILED:
        raise InferenceError(f"Task {info.task_id} of {info.model_name} failed: {info.error}", task_id=info.task_id)
    return info.result

"""Problem documents: how errors of a service travel to its clients, and the header that marks its answers.

Light to import: command-line tools load it at every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.common.exception import SchedulerError

SERVICE_HEADER = "Rmcs-Api"
"""Every answer of a service has it; those of older ones do not."""


def error_from_problem(problem: Mapping[str, Any]) -> SchedulerError:
    """Convert a problem document to the error that it describes."""
    kind = getattr(errors, str(problem.get("error")), SchedulerError)
    if not (isinstance(kind, type) and issubclass(kind, SchedulerError)):
        kind = SchedulerError
    return kind(
        str(problem.get("message") or "The service refused the request without a message."),
        task_id=problem.get("task_id"),
        cluster=problem.get("cluster"),
        next_step=problem.get("next_step"),
    )

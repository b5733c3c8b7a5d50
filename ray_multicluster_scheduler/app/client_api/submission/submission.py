"""Submission: builds a TaskDescription from a program's arguments: validated, pickled, with an id."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from ray_multicluster_scheduler.app.client_api.arguments.arguments import (
    check_arguments,
    prepare_arguments,
    runtime_env_for,
    source_names,
)
from ray_multicluster_scheduler.app.client_api.options import (
    JobOptions,
    TaskOptions,
    common_fields,
    fields_from,
    joins_equal_item,
    start_time,
)
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction
from ray_multicluster_scheduler.app.client_api.submission.task_template import TaskTemplate, make_template
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.home_paths import find_in_arguments
from ray_multicluster_scheduler.common.model import JobDescription, TaskDescription, parse_resources
from ray_multicluster_scheduler.common.model.item_fields import RESERVED_IDS
from ray_multicluster_scheduler.common.model.task_description import content_key
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Submission:
    """Builds descriptions of tasks and jobs for one control plane. Thread-safe."""

    def __init__(
        self, settings: Settings, payload_cache: PayloadCache, clock: Clock, control_plane: str, homes: Sequence[str]
    ) -> None:
        self._settings, self._payload_cache, self._clock = settings, payload_cache, clock
        self._control_plane, self._homes = control_plane, homes
        self._numbers = itertools.count(1)

    def task(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        *,
        num_returns: int | str | None = None,
        **options: Unpack[TaskOptions],
    ) -> tuple[TaskDescription, Arguments]:
        """Describe a task. Its code and arguments are then in the payload cache; a caller that does not submit the task
        must release them. Raises ConfigurationError, TaskSubmissionError for a value that cannot be pickled."""
        template = self.template(fn, resource_requirements, tags, num_returns, options)
        return self.build_task(template, *check_arguments(args, kwargs, template.name))

    def template(
        self,
        fn: Callable[..., Any],
        resource_requirements: Mapping[str, Any] | None,
        tags: Sequence[str] | None,
        num_returns: int | str | None,
        options: Mapping[str, Any],
    ) -> TaskTemplate:
        """Return the parts that do not depend on the arguments, cached for a RemoteFunction without further options.
        Raises ConfigurationError, TaskSubmissionError."""
        given = (resource_requirements, tags, num_returns)
        if not isinstance(fn, RemoteFunction) or options or given != (None, None, None):
            return make_template(fn, *given, options, self._settings)
        known = fn.template
        if known is None or known[0] is not self._settings:
            known = fn.template = (self._settings, make_template(fn, None, None, None, {}, self._settings))
        template: TaskTemplate = known[1]
        return template

    def build_task(
        self, template: TaskTemplate, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[TaskDescription, Arguments]:
        """Describe a task with these arguments. Raises TaskSubmissionError for a value that cannot be pickled."""
        function = template.function
        arguments = prepare_arguments(args, kwargs, template.name, function.handles)
        task_id, data = self.new_id("task"), arguments.data
        is_compared = template.joined or template.fields.get("idempotency_key") is not None
        digest = digest_of(data) if is_compared else self._payload_cache.name_for(data, task_id)
        now = self._clock.now()
        task = TaskDescription(
            id=task_id,
            preferred_cluster=template.preferred_cluster or ClusterContextManager.get(),
            runtime_env=runtime_env_for(arguments, template.runtime_env, function.modules),
            function_digest=function.digest,
            arguments_digest=digest,
            arguments_bytes=len(data),
            home_paths=find_in_arguments(args, kwargs, self._homes),
            submitted_at=now,
            start_after=None if template.start_after is None else start_time(template.start_after, now),
            **template.fields,
        )
        if template.joined:
            task = replace(task, content_key=content_key(task, source_names(arguments)))
        # Last, since an error above would leave the payloads in the cache.
        self._payload_cache.hold(function.digest, function.data)
        self._payload_cache.hold(digest, data)
        return task, arguments

    def job(self, entrypoint: str, **options: Unpack[JobOptions]) -> TaskDescription:
        """Describe a job. Raises ConfigurationError for a wrong argument."""
        if not isinstance(entrypoint, str) or not entrypoint.strip() or "\0" in entrypoint:
            raise ConfigurationError(
                f"The entrypoint is {entrypoint!r}.", next_step='give a shell command, for example "python train.py"'
            )
        fields = common_fields(options, "job", self._settings, options.get("tags"))
        submission_id = options.get("submission_id")
        job = JobDescription(entrypoint, **fields_from(JobDescription, options))
        now = self._clock.now()
        task = TaskDescription(
            id=_check_job_id(submission_id) if submission_id is not None else self.new_id("job"),
            kind="job",
            name=options.get("name") or entrypoint,
            requirements=parse_resources(options.get("resource_requirements")),
            job=job,
            submitted_at=now,
            start_after=start_time(options.get("start_after"), now),
            **fields,
        )
        return replace(task, content_key=content_key(task)) if joins_equal_item(options, self._settings) else task

    def new_id(self, kind: str) -> str:
        """Return an id that no control plane has used before."""
        return f"{kind}-{self._control_plane}-{next(self._numbers)}"


def placeholder_task() -> None:
    """The function of a task that is only planned."""


class PlaceholderActor:
    """The class of an actor that is only planned."""


def new_control_plane_id(*, lasting: bool = False) -> str:
    """Return a random id: short enough to type, long enough to be unique on a cluster. ``lasting``: unique also in a
    service, which keeps the ids of all programs."""
    return secrets.token_hex(8 if lasting else 4)


def _check_job_id(submission_id: object) -> str:
    if not isinstance(submission_id, str) or not _JOB_ID.fullmatch(submission_id):
        raise ConfigurationError(
            f"submission_id is {submission_id!r}.",
            next_step="begin with a letter or a digit, then use letters, digits, '_', '-' and '.'; at most 128 in all",
        )
    if submission_id in RESERVED_IDS:
        raise ConfigurationError(
            f"submission_id is {submission_id!r}, which commands use for other items (`rmcs task show last`).",
            next_step="choose another one",
        )
    return submission_id

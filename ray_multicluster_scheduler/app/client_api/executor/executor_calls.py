"""Submits the calls of an executor to a scheduler: one per task, or many packed into one task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.executor.chunk_call import run_rows
from ray_multicluster_scheduler.app.client_api.options import common_fields, option_names, refuse_unknown
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_function
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction, as_remote_function
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import allows_retry, parse_resources

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler


class CallOptions:
    """The submit options that all calls of an executor share."""

    def __init__(self, needs: Mapping[str, Any] | None, tags: Sequence[str] | None, options: Mapping[str, Any]) -> None:
        self._needs, self._tags, self.given = needs, tags, dict(options)

    def check(self, scheduler: UnifiedScheduler | None) -> Mapping[str, Any]:
        """Return the options as item fields. Raises ConfigurationError for options that no call may have."""
        refuse_unknown(self.given, option_names("task") - {"keep"})
        if self.given.get("idempotency_key") is not None:
            raise ConfigurationError(
                "An executor does not take an idempotency_key: the key identifies one item, and an executor runs many.",
                next_step="remove it here, or pass it to submit_task_async",
            )
        parse_resources(self._needs)
        if execution_context.inside():
            return self.given  # Ray checks them for each call
        from ray_multicluster_scheduler.control_plane.config import Settings  # noqa: PLC0415 - heavy, and outside only

        settings = Settings() if scheduler is None else scheduler.settings
        return common_fields(self.given, "task", settings, self._tags)

    def merged_over(self, fn: RemoteFunction) -> CallOptions:
        """Return these options merged over the defaults of a remote function."""
        own = {key: value for key, value in fn.submit_options.items() if key not in ("num_returns", "keep")}
        needs, tags = own.pop("resource_requirements", None), own.pop("tags", None)
        return CallOptions(
            needs if self._needs is None else self._needs,
            tags if self._tags is None else self._tags,
            {**own, **self.given},
        )

    def submit(
        self,
        scheduler: UnifiedScheduler,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        **changed: Any,
    ) -> TaskHandle:
        """Submit one item with these options; ``changed`` overrides them. Raises SchedulerError."""
        options: Any = {**self.given, "keep": None, **changed}  # the value is fetched at once
        handle: TaskHandle = scheduler.submit_task_async(
            fn, args, kwargs, self._needs, self._tags, num_returns=1, **options
        )
        return handle


class ChunkCalls:
    """Submits the chunks of one map. The function is pickled once, with the first chunk."""

    def __init__(
        self, scheduler: UnifiedScheduler, options: CallOptions, fn: Callable[..., Any], *, spread: bool
    ) -> None:
        """Raises ConfigurationError or TaskSubmissionError for a function that cannot be used."""
        known = as_remote_function(fn)
        if isinstance(known, RemoteFunction):
            options, fn = options.merged_over(known), known.shipped
        self._scheduler, self._options, self._fn, self._spread = scheduler, options, fn, spread
        self._name = options.given.get("name") or getattr(fn, "__qualname__", None) or type(fn).__qualname__
        self._limits = options.check(scheduler)
        _check_function(known.function if isinstance(known, RemoteFunction) else fn, self._name)
        self._chunk_function = RemoteFunction(functools.partial(run_rows, fn, spread))

    def submit(self, rows: list[Any]) -> TaskHandle:
        """Submit a chunk. Raises SchedulerError."""
        limit = self._limits.get("run_timeout")
        # No user retries for a chunk: an exception fails one call, and `retry` repeats that call alone.
        changed = {"retries": 0} if limit is None else {"retries": 0, "run_timeout": limit * len(rows)}
        return self._options.submit(self._scheduler, self._chunk_function, (rows,), name=self._name, **changed)

    def retry(self, row: Any, error_type: str) -> TaskHandle | None:
        """Retry one failed call as its own task; None if its retries do not allow it. Raises SchedulerError."""
        retries, limits = self._limits.get("retries") or 0, self._limits
        if retries < 1 or not allows_retry(error_type, limits.get("retry_on"), limits.get("no_retry_on") or ()):
            return None
        args = row if self._spread else (row,)
        return self._options.submit(self._scheduler, self._fn, args, name=self._name, retries=retries - 1)


def _check_function(fn: object, name: str) -> None:
    """Reject an unusable function before anything is sent, rather than once per call."""
    check_function(fn, name, verb="map", usage="pass the function first, then its inputs: map(f, items)")
    try:
        pickling.dumps(fn)
    except SchedulerError:
        raise
    except Exception as error:
        raise TaskSubmissionError(
            f"the function {name} cannot be pickled: {type(error).__name__}: {error}.",
            next_step="open files, locks and connections inside the function instead of capturing them",
        ) from error

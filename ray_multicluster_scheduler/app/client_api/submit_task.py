"""submit_task and what goes with it, on the shared scheduler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from ray_multicluster_scheduler.app.client_api.handle import Handle, TaskHandle
from ray_multicluster_scheduler.app.client_api.options import ItemOptions
from ray_multicluster_scheduler.app.client_api.unified_scheduler import get_unified_scheduler
from ray_multicluster_scheduler.common.exception import ConfigurationError

H = TypeVar("H", bound=Handle)

__all__ = ["TaskHandle", "cancel", "get", "submit_task", "submit_task_async", "wait"]


def submit_task(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    **options: Unpack[ItemOptions],
) -> Any:
    """Run ``fn`` on the best cluster and return its value; raises what it raised, or a SchedulerError."""
    return get_unified_scheduler().submit_task(fn, args, kwargs, resource_requirements, tags, **options)


def submit_task_async(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    **options: Unpack[ItemOptions],
) -> TaskHandle:
    """The same without waiting: returns a handle."""
    return get_unified_scheduler().submit_task_async(fn, args, kwargs, resource_requirements, tags, **options)


@overload
def get(handles: Handle, timeout: float | None = None) -> Any: ...
@overload
def get(handles: Sequence[Handle], timeout: float | None = None) -> list[Any]: ...
def get(handles: Handle | Sequence[Handle], timeout: float | None = None) -> Any:
    """The value of one handle, or the values of many in their order. Raises the first error, TaskTimeoutError."""
    if isinstance(handles, Handle):
        return handles.result(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    return [
        _checked(handle).result(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for handle in handles
    ]


def wait(handles: Sequence[H], num_returns: int = 1, timeout: float | None = None) -> tuple[list[H], list[H]]:
    """Wait until ``num_returns`` of them are over, or the time is; returns (over, not over), in their order."""
    unique = list(dict.fromkeys(_checked(handle) for handle in handles))
    if not 1 <= num_returns <= max(1, len(unique)):
        raise ConfigurationError(
            f"num_returns is {num_returns}, with {len(unique)} handles.", next_step="give 1 up to their number"
        )
    deadline = None if timeout is None else time.monotonic() + timeout
    enough = threading.Semaphore(0)
    try:
        for handle in unique:
            handle._item.watch(enough.release)
        for _ in range(min(num_returns, len(unique))):
            if not enough.acquire(timeout=None if deadline is None else max(0.0, deadline - time.monotonic())):
                break
    finally:
        for handle in unique:
            handle._item.unwatch(enough.release)
    over = {handle for handle in unique if handle.done()}
    return [handle for handle in unique if handle in over], [handle for handle in unique if handle not in over]


def cancel(item: str | Handle, *, force: bool = False) -> None:
    """End an item by its id or handle, in whatever state. Raises UnknownItemError."""
    if isinstance(item, Handle):
        item.cancel(force=force)
    else:
        get_unified_scheduler().cancel(item, force=force)


def _checked(handle: H) -> H:
    if not isinstance(handle, Handle):
        raise ConfigurationError(
            f"{handle!r} is not a handle.", next_step="pass what submit_task_async or submit_job_async returned"
        )
    return handle

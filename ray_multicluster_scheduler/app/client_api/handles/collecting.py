"""``get`` and ``wait`` over handles, called by the verbs and the schedulers. The caller blocks once for all handles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.app.client_api.handles.object_ref_generator import ObjectRefGenerator
from ray_multicluster_scheduler.app.client_api.handles.progress import counted
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_num_returns
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.notices import unread_failures
from ray_multicluster_scheduler.control_plane.runtime.item import Promise, wait_for

H = TypeVar("H", bound=Handle | ObjectRefGenerator)


def get(handles: Handle | Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None) -> Any:
    """Return the value of one handle, or the values of many in order. Raises the first error as soon as it is known,
    without waiting for the others; TaskTimeoutError. ``progress`` shows a bar meanwhile, where stderr is a terminal,
    and in notebooks."""
    timeout = _seconds(timeout)
    if isinstance(handles, Handle):
        with counted(progress, "get", [handles._item]):
            return handles.result(timeout)
    many = _checked(handles, "get")
    missing = next((one for one in many if not one.done()), None)
    if missing is not None:
        missing._check_process()
    items = [one._item for one in many]
    with counted(progress, "get", items):
        wait_for(items, len(many), timeout, or_failure=True)
    failed = next((one for one in many if one.done() and not _succeeded(one._item)), None)
    if failed is not None:  # a failure may have ended the wait early
        for item in items:
            item.watch(_mark_read)  # the caller asked for all of them, also for those that fail later
        failed.result(0)
    late = next((one for one in many if not one.done()), None)
    if late is not None:
        raise late._still_going(timeout)
    return [one.result(0) for one in many]


def _succeeded(item: Promise) -> bool:
    return item.outcome is not None and item.outcome.succeeded


def _mark_read(item: Promise) -> None:
    unread_failures.read(item.id)


def wait(
    handles: Sequence[H], num_returns: int = 1, timeout: float | None = None, *, progress: bool | None = None
) -> tuple[list[H], list[H]]:
    """Wait until ``num_returns`` have ended, or the timeout; returns (ended, the rest), each in the given order. As in
    Ray, the first list has at most ``num_returns``, even if more have ended. ``progress`` as in `get`."""
    many = _checked(handles, "wait")
    unique = list(dict.fromkeys(many))
    num_returns = check_num_returns(num_returns, len(many), len(unique))
    missing = [one for one in unique if not one.done()]
    if len(unique) - len(missing) < num_returns and missing:
        missing[0]._check_process()
    items = [one._item for one in unique]
    with counted(progress, "wait", items, num_returns):
        wait_for(items, num_returns, _seconds(timeout))
    over: list[H] = []
    rest: list[H] = []
    for one in unique:
        (over if len(over) < num_returns and one.done() else rest).append(one)
    return over, rest


def _checked(handles: Iterable[H], verb: str) -> list[H]:
    if isinstance(handles, Handle):
        raise ConfigurationError(
            f"{verb} was given one handle, {handles.id}, not a list.", next_step=f"write {verb}([handle])"
        )
    if isinstance(handles, (str, bytes)) or not isinstance(handles, Iterable):
        raise _no_handle(handles)
    many = list(handles)
    for one in many:
        if not isinstance(one, (Handle, ObjectRefGenerator) if verb == "wait" else Handle):
            raise _no_handle(one)
    return many


def _no_handle(given: object) -> ConfigurationError:
    return ConfigurationError(
        f"{given!r} is not a handle.",
        next_step="pass what .remote(), put, submit_task_async or submit_job_async returned, or a list of those",
    )


def _seconds(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ConfigurationError(f"timeout is {timeout!r}.", next_step="give seconds, or None to wait without limit")
    return float(timeout)

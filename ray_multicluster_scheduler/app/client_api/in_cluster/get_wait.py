"""get and wait inside a cluster, with Ray's functions, for our handles and for plain Ray references."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.generators import NativeObjectRefGenerator
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import NativeObjectHandle, NativeTaskHandle
from ray_multicluster_scheduler.app.client_api.in_cluster.jobs import POLL_S, NativeJobHandle
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_num_returns
from ray_multicluster_scheduler.common.exception import ConfigurationError


def get(handles: Any, timeout: float | None = None) -> Any:
    """Return the value of one handle, or of many in order. Raises the first error at once; TaskTimeoutError."""
    if not isinstance(handles, Iterable):
        return _handle(handles).result(timeout)
    many = [_handle(one) for one in handles]
    if any(isinstance(one, NativeJobHandle) for one in many):
        deadline = None if timeout is None else time.monotonic() + timeout
        return [one.result(None if deadline is None else max(0.0, deadline - time.monotonic())) for one in many]
    ray = runtime_context.connected_ray()
    refs = [one.ref for one in many]
    try:
        return ray.get(refs, timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        over, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        raise next(one for one in many if one.ref not in over).timeout_error(timeout) from None
    except ray.exceptions.RayError:
        over, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        for one in many:
            if one.ref in over:
                one.result(0)  # one of them raises, with its name in the message
        raise


def wait(
    handles: Sequence[Any], num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[Any], list[Any]]:
    """Wait until ``num_returns`` have ended, or the timeout; returns (ended, the rest), each in the given order. As in
    Ray, the first list has at most ``num_returns``, even if more have ended."""
    many = list(handles)
    unique = list(dict.fromkeys(many))
    checked = [_handle(one) for one in unique]
    num_returns = check_num_returns(num_returns, len(many), len(unique))
    if not unique:
        return [], []
    if all(isinstance(one, (NativeTaskHandle, NativeObjectRefGenerator)) for one in checked):
        by_ref = {one.ref: given for one, given in zip(checked, unique, strict=True)}
        over, rest = runtime_context.connected_ray().wait(
            list(by_ref), num_returns=num_returns, timeout=timeout, fetch_local=fetch_local
        )
        return [by_ref[ref] for ref in over], [by_ref[ref] for ref in rest]
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        done = [one.done() for one in checked]
        if sum(done) >= num_returns or (deadline is not None and time.monotonic() >= deadline):
            over = [one for one, is_over in zip(unique, done, strict=True) if is_over][:num_returns]
            return over, [one for one in unique if one not in over]
        time.sleep(POLL_S if deadline is None else max(0.0, min(POLL_S, deadline - time.monotonic())))


def _handle(given: Any) -> Any:
    if isinstance(given, (NativeTaskHandle, NativeJobHandle, NativeObjectRefGenerator)):
        return given
    if isinstance(given, runtime_context.connected_ray().ObjectRef):
        return NativeObjectHandle(given, "a Ray reference", runtime_context.item())
    raise ConfigurationError(
        f"{given!r} is not a handle.", next_step="pass what submit_task_async, .remote() or put returned here"
    )

"""submit_task and what goes with it: on the shared scheduler, or inside a cluster on Ray itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from ray_multicluster_scheduler.app.client_api.execution_context import inside, side
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_recursive, check_what_to_cancel
from ray_multicluster_scheduler.app.client_api.submit_actor import is_actor, kill

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, TaskHandle
    from ray_multicluster_scheduler.app.client_api.options import TaskOptions

H = TypeVar("H", bound="Handle")

__all__ = ["cancel", "get", "put", "submit_task", "submit_task_async", "wait"]


def submit_task(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    *,
    num_returns: int | None = None,
    **options: Unpack[TaskOptions],
) -> Any:
    """Run ``fn`` on the best cluster and return its value; raises what it raised, or a SchedulerError."""
    return side().submit_task(fn, args, kwargs, resource_requirements, tags, num_returns=num_returns, **options)


@overload
def submit_task_async(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    *,
    num_returns: None = None,
    **options: Unpack[TaskOptions],
) -> TaskHandle: ...
@overload
def submit_task_async(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    *,
    num_returns: int | None,
    **options: Unpack[TaskOptions],
) -> Any: ...
def submit_task_async(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    *,
    num_returns: int | None = None,
    **options: Unpack[TaskOptions],
) -> Any:
    """The same without waiting: a handle; with ``num_returns`` above 1 a list of as many, with 0 None."""
    return side().submit_task_async(fn, args, kwargs, resource_requirements, tags, num_returns=num_returns, **options)


def put(value: object) -> ObjectHandle:
    """Keep a value to be given to tasks and actors: pickled once, shipped once to each cluster that needs it.

    It is shipped as it is: paths under a home directory are moved in plain arguments only, not in here.
    """
    return side().put(value)


@overload
def get(handles: Handle, timeout: float | None = None, *, progress: bool | None = None) -> Any: ...
@overload
def get(handles: Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None) -> list[Any]: ...
def get(handles: Handle | Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None) -> Any:
    """The value of one handle, or the values of many in their order; the time is for all of them together.

    Raises the first error as soon as it is known; TaskTimeoutError. ``progress=True`` shows a bar on stderr meanwhile,
    where that is a terminal, and in notebooks; inside a cluster nobody would see one.
    """
    how = {} if inside() else {"progress": progress}
    return _collecting().get(handles, timeout, **how)


def wait(
    handles: Sequence[H],
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
    *,
    progress: bool | None = None,
) -> tuple[list[H], list[H]]:
    """Wait until ``num_returns`` of them are over, or the time is; returns (so many that are over, the rest).

    ``fetch_local`` is Ray's: inside a cluster, whether the values are to come to this node, too. Outside every value
    comes to us with the news that it is there. ``progress`` as in `get`.
    """
    how = {"fetch_local": fetch_local} if inside() else {"progress": progress}
    over, rest = _collecting().wait(handles, num_returns, timeout, **how)
    return over, rest


def cancel(item: str | Handle | ActorHandle, *, force: bool = False, recursive: bool = True) -> None:
    """End an item by its id or handle, in whatever state; an actor is killed. Raises UnknownItemError,
    ConfigurationError for what is neither.

    ``recursive`` is Ray's, and only True is taken: what the item has submitted inside its cluster ends with it.
    """
    check_recursive(recursive)
    check_what_to_cancel(item)
    if isinstance(item, str):
        side().cancel(item, force=force)
    elif is_actor(item):
        kill(item)
    else:
        item.cancel(force=force)


def _collecting() -> Any:
    """Handles know themselves whose they are: no scheduler is made for them."""
    if inside():
        from ray_multicluster_scheduler.app.client_api.in_cluster import get_wait as native  # noqa: PLC0415 - needs Ray

        return native
    from ray_multicluster_scheduler.app.client_api.handles import collecting  # noqa: PLC0415 - outside only

    return collecting

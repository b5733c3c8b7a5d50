"""submit_task and the verbs that go with it: on the program's shared scheduler, or inside a cluster on Ray itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ray_multicluster_scheduler.app.client_api.execution_context import active_scheduler, inside
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_recursive, check_what_to_cancel
from ray_multicluster_scheduler.app.client_api.submit_actor import is_actor
from ray_multicluster_scheduler.app.client_api.verbs import put, submit_task, submit_task_async

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle

H = TypeVar("H", bound="Handle")

__all__ = ["cancel", "get", "put", "submit_task", "submit_task_async", "wait"]


@overload
def get(handles: Handle, timeout: float | None = None, *, progress: bool | None = None) -> Any: ...
@overload
def get(handles: Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None) -> list[Any]: ...
def get(handles: Handle | Sequence[Handle], timeout: float | None = None, *, progress: bool | None = None) -> Any:
    """Return the value of one handle, or of many in order; ``timeout`` is for all together. Raises the first error at
    once; TaskTimeoutError. ``progress=True`` shows a progress bar on stderr (if a terminal) and in notebooks."""
    options = {} if inside() else {"progress": progress}
    return _collecting().get(handles, timeout, **options)


def wait(
    handles: Sequence[H],
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
    *,
    progress: bool | None = None,
) -> tuple[list[H], list[H]]:
    """Wait until ``num_returns`` items have ended, or the timeout; returns (up to so many that ended, the rest).

    ``fetch_local``, an argument of Ray, has an effect inside clusters only: fetch the values to this node.
    ``progress`` as in `get`.
    """
    options = {"fetch_local": fetch_local} if inside() else {"progress": progress}
    ended, rest = _collecting().wait(handles, num_returns, timeout, **options)
    return ended, rest


def cancel(item: str | Handle | ActorHandle, *, force: bool = False, recursive: bool = True) -> bool:
    """Cancel an item by its id or handle, in any state; an actor is killed. False: it had ended already. A running task
    is interrupted, and its worker is killed if it has not ended 2 s later, with ``force`` at once. Items that it
    submitted inside its cluster end, too, so ``recursive`` must be True. Raises UnknownItemError, ConfigurationError
    for anything else."""
    check_recursive(recursive)
    check_what_to_cancel(item)
    if isinstance(item, str):
        return active_scheduler().cancel(item, force=force)
    if is_actor(item):
        return item._rmcs_end()
    return item.cancel(force=force)


def _collecting() -> Any:
    """The functions for handles, which belong to their scheduler: none is made for them."""
    if inside():
        from ray_multicluster_scheduler.app.client_api.in_cluster import get_wait as native  # noqa: PLC0415 - needs Ray

        return native
    from ray_multicluster_scheduler.app.client_api.handles import collecting  # noqa: PLC0415 - outside only

    return collecting

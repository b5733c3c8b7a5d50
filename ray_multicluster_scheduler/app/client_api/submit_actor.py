"""submit_actor and what goes with it: on the shared scheduler, or inside a cluster on Ray itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, Unpack

from ray_multicluster_scheduler.app.client_api.execution_context import side
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.options import ActorOptions

__all__ = ["get_actor", "kill", "list_actors", "submit_actor", "submit_actor_async"]


def submit_actor(
    cls: type,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    **options: Unpack[ActorOptions],
) -> ActorHandle:
    """Make an actor on the best cluster and wait until it is ready; ``actor.method.remote(x)`` calls a method.

    Options are those of tasks, and ``max_restarts``, ``restart_elsewhere``, ``lifetime``, ``max_concurrency``,
    ``get_if_exists`` and ``ready_timeout`` (seconds from when a cluster took it until its constructor is done; the
    time that it waits for a place is limited by ``queue_timeout``). Raises what its constructor raised, or a
    SchedulerError: TaskTimeoutError when one of these times is over, and the actor with it.
    """
    return side().submit_actor(cls, args, kwargs, resource_requirements, tags, **options)


def submit_actor_async(
    cls: type,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resource_requirements: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    **options: Unpack[ActorOptions],
) -> ActorHandle:
    """The same without waiting: methods can be called at once, and the calls wait for the actor."""
    return side().submit_actor_async(cls, args, kwargs, resource_requirements, tags, **options)


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """A living actor by its name: this program's, or a detached one. Raises UnknownItemError.

    ``namespace`` is Ray's, and only None is taken.
    """
    return side().get_actor(name, namespace)


def list_actors() -> list[dict[str, Any]]:
    """Every actor of this program that was not forgotten, oldest first; inside a cluster those that this process made
    there and still holds."""
    return side().list_actors()


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor now; calls that it has not answered fail. Raises ConfigurationError for what is none."""
    if not is_actor(actor):
        raise ConfigurationError(
            f"{actor!r} is not the handle of an actor.",
            next_step="pass what submit_actor, .remote() or get_actor returned; tasks are ended with cancel",
        )
    type(actor).kill(actor, no_restart=no_restart)  # the class's: the actor may have a method of that name


def is_actor(handle: object) -> TypeGuard[ActorHandle]:
    """Is it the handle of an actor, from outside or from inside a cluster?"""
    return bool(getattr(type(handle), "_rmcs_actor_handle", False))

"""submit_actor, get_actor, list_actors and kill: on the program's shared scheduler; inside a cluster, on Ray itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from ray_multicluster_scheduler.app.client_api.verbs import get_actor, list_actors, submit_actor, submit_actor_async
from ray_multicluster_scheduler.common.exception import ConfigurationError

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle

__all__ = ["get_actor", "kill", "list_actors", "submit_actor", "submit_actor_async"]


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor now; unanswered calls fail. Raises ConfigurationError for anything else."""
    if not is_actor(actor):
        raise ConfigurationError(
            f"{actor!r} is not the handle of an actor.",
            next_step="pass what submit_actor, .remote() or get_actor returned; tasks are ended with cancel",
        )
    type(actor).kill(actor, no_restart=no_restart)  # the class's: the actor may have a method of that name


def is_actor(handle: object) -> TypeGuard[ActorHandle]:
    """Is it the handle of an actor, from outside or from inside a cluster?"""
    return bool(getattr(type(handle), "_rmcs_actor_handle", False))

"""An actor that was made outside, as it is used inside its cluster: through the shell that holds it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.actor_reference import restore
from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.actors import NativeActorHandle, as_argument, handles_of
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import NativeCallHandle
from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.exception import ActorDiedError, ConfigurationError, UnknownItemError
from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE


class ActorProxy(NativeActorHandle):
    """The handle of an actor of some program, travelled into the actor's cluster. Its calls are calls of Ray."""

    def __init__(
        self, shell: Any, ray_name: str, parent: CurrentItem, methods: Mapping[str, int], sent_as: str | None
    ) -> None:
        """``sent_as`` is the cluster that its program wrote down; with it, the program knows it again."""
        super().__init__(shell, ray_name, parent, methods)
        self._sent_as = sent_as

    def _rmcs_call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Any:
        bound = self._actor.native_call
        if options:
            bound = bound.options(**options)
        # Each is an argument of its own, so that Ray fills in the values of references when they are there.
        values = [as_argument(one) for one in (*args, *kwargs.values())]
        refs = bound.remote(method, tuple(kwargs), *values)
        return handles_of(refs, f"{self._name}.{method}", runtime_context.item(), NativeCallHandle)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (self._name, self._sent_as, self._methods)


def rebuild_actor(ray_name: str, cluster: str | None, methods: Mapping[str, int]) -> ActorProxy:
    """The proxy of the actor of this name. Raises ConfigurationError on another cluster, ActorDiedError when it is
    gone."""
    item = runtime_context.item()
    if cluster not in (None, item.cluster):
        raise ConfigurationError(
            f"Actor {ray_name!r} lives on cluster {cluster!r}, and this code runs inside of {item.cluster!r}.",
            cluster=item.cluster,
            next_step=f'submit what uses it with preferred_cluster="{cluster}", fallback="wait"',
        )
    try:
        shell = runtime_context.connected_ray().get_actor(ray_name, namespace=ACTOR_NAMESPACE)
    except ValueError as error:
        raise ActorDiedError(
            f"Actor {ray_name!r} is not on cluster {item.cluster!r} any more: {error}.",
            task_id=ray_name,
            cluster=item.cluster,
            next_step="make a new actor and pass that",
        ) from error
    return ActorProxy(shell, ray_name, item, methods, cluster)


def find(name: str) -> ActorProxy:
    """A detached actor of ours on this cluster, by its public name. Raises UnknownItemError."""
    item = runtime_context.item()
    try:
        return ActorProxy(
            runtime_context.connected_ray().get_actor(name, namespace=ACTOR_NAMESPACE), name, item, {}, item.cluster
        )
    except ValueError:
        raise UnknownItemError(
            f"No living actor {name!r} can be found on cluster {item.cluster!r}.",
            task_id=name,
            cluster=item.cluster,
            next_step="inside a cluster only detached actors, and those made inside, are found by name: correct it, or "
            "pass the handle of the program's actor as an argument",
        ) from None

"""EmbeddedActors: the actors of a control plane in this process."""

from __future__ import annotations

from collections.abc import Mapping

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission, NewActorItem
from ray_multicluster_scheduler.app.client_api.actors.actors import Actors
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape
from ray_multicluster_scheduler.control_plane.runtime import detached_actors
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import name_taken


class EmbeddedActors(Actors):
    """Safe from any thread."""

    def __init__(self, runtime: Runtime, submission: ActorSubmission) -> None:
        super().__init__(runtime, submission)
        self._here = runtime

    def _make(
        self, new: NewActorItem, name: str | None, methods: Mapping[str, MethodShape], *, get_if_exists: bool
    ) -> ActorHandle:
        actor = new.task.actor
        if name is not None and actor is not None and actor.detached and self._registry.named(name) is None:
            found, silent = self._look(name, detached_actors.LOOK_PATIENCE_S)
            if found and get_if_exists:
                return self._adopt(name, detached_actors.one_of(name, found), methods)
            if found:
                raise name_taken(name, "a detached one", found[0])
            detached_actors.warn_of(silent, name)
        return self._registry.add(
            lambda: self._runtime.submit(new.shelved(self._runtime.payload_cache), new.arguments),
            name,
            methods,
            get_if_exists=get_if_exists,
        )

    def _search(self, name: str) -> ActorHandle:
        found, silent = self._look(name)
        if found:
            return self._adopt(name, detached_actors.one_of(name, found), {})
        missed = f" (no answer from {'; '.join(silent)})" if silent else ""
        raise self._registry.unknown(name, f", neither of this program nor detached on a cluster{missed}")

    def _look(self, name: str, patience: float | None = None) -> tuple[list[str], list[str]]:
        dying = self._registry.dying(name)
        return self._here.run(detached_actors.search(self._here, name, dying, patience))

    def _adopt(self, name: str, cluster: str, methods: Mapping[str, MethodShape]) -> ActorHandle:
        new = self._submission.adopt(name, cluster)
        return self._registry.add(
            lambda: self._runtime.submit(new.shelved(self._runtime.payload_cache)), name, methods, get_if_exists=True
        )

"""The part of a UnifiedScheduler that is about actors."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission
from ray_multicluster_scheduler.app.client_api.actors.actors import Actors
from ray_multicluster_scheduler.app.client_api.embedded.embedded_actors import EmbeddedActors
from ray_multicluster_scheduler.app.client_api.embedded.submission import Submission
from ray_multicluster_scheduler.app.client_api.options import ActorOptions
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_namespace
from ray_multicluster_scheduler.app.client_api.remote.remote_actors import RemoteActors
from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class ActorVerbs(ABC):
    """Makes, finds, kills and lists actors. Safe from any thread."""

    _lock: threading.Lock
    _runtime: ControlPlane | None
    _actors: Actors | None = None

    def submit_actor(
        self,
        cls: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ActorOptions],
    ) -> ActorHandle:
        """Make an actor on the best cluster and return its handle once it is ready; raises what its constructor raised,
        or a SchedulerError. One that is not ready ``ready_timeout`` seconds after its cluster took it is ended:
        TaskTimeoutError."""
        return self._with_actors().submit(cls, args, kwargs, resource_requirements, tags, options, wait=True)

    def submit_actor_async(
        self,
        cls: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ActorOptions],
    ) -> ActorHandle:
        """The same without waiting; calls may be made at once. Only for lifetime="detached" it asks the clusters first,
        a few seconds at most, whether the name is free. Raises ConfigurationError, TaskSubmissionError."""
        return self._with_actors().submit(cls, args, kwargs, resource_requirements, tags, options)

    def get_actor(self, name: str, namespace: str | None = None) -> ActorHandle:
        """A living actor by its name: this program's, or a detached one on any cluster. Raises UnknownItemError."""
        check_namespace(namespace)
        return self._with_actors().get(name)

    def kill(self, actor: ActorHandle, *, no_restart: bool = True) -> None:
        """End an actor now; nothing happens to one that is over. Raises ConfigurationError for what is none."""
        if not isinstance(actor, ActorHandle):
            raise ConfigurationError(
                f"{actor!r} is not the handle of an actor.",
                next_step="pass what submit_actor, .remote() or get_actor returned; tasks are ended with cancel",
            )
        ActorHandle.kill(actor, no_restart=no_restart)

    def list_actors(self) -> list[dict[str, Any]]:
        """Every actor of this program that was not forgotten, oldest first."""
        runtime = self._running()
        return [] if runtime is None else runtime.actor_rows()

    @abstractmethod
    def _started(self) -> tuple[ControlPlane, Submission]:
        """The scheduler that these verbs are part of has it."""

    @abstractmethod
    def _running(self) -> ControlPlane | None:
        """And this: None if nothing was ever submitted."""

    def _with_actors(self) -> Actors:
        runtime, submission = self._started()
        with self._lock:
            if self._actors is None:
                new = ActorSubmission(runtime.settings, runtime.clock, runtime.homes, submission.new_id)
                if isinstance(runtime, Runtime):
                    self._actors = EmbeddedActors(runtime, new)
                else:
                    assert isinstance(runtime, RemoteRuntime)
                    self._actors = RemoteActors(runtime, new)
            return self._actors

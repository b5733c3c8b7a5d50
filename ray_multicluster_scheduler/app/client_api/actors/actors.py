"""Actors: makes and finds the actors of one control plane."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_registry import ActorRegistry
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission, NewActorItem
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape, methods_of
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import make_remote_class
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime import detached_actors
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import name_taken


class Actors(ABC):
    """Safe from any thread."""

    def __init__(self, runtime: ControlPlane, submission: ActorSubmission) -> None:
        self._runtime, self._submission = runtime, submission
        self._registry = ActorRegistry(runtime)

    def submit(
        self,
        cls: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        resource_requirements: Mapping[str, Any] | None,
        tags: Sequence[str] | None,
        options: Mapping[str, Any],
        *,
        wait: bool = False,
    ) -> ActorHandle:
        """Hand an actor to the brain; returns at once, with lifetime="detached" after a look at the clusters for one of
        that name, which takes a few seconds at most. With ``wait`` it returns when the actor is ready; the brain ends
        one that is not within its ``ready_timeout``, which counts from when a cluster took it.

        Explicit arguments win over options that the class has. Raises ConfigurationError, TaskSubmissionError; with
        ``wait`` also as :meth:`ActorHandle.ready`.
        """
        handle = self._submit(cls, args, kwargs, resource_requirements, tags, options)
        return ActorHandle.ready(handle) if wait else handle

    def _submit(
        self,
        cls: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        resource_requirements: Mapping[str, Any] | None,
        tags: Sequence[str] | None,
        options: Mapping[str, Any],
    ) -> ActorHandle:
        remote_class = make_remote_class(cls, {})
        own = dict(remote_class.submit_options)
        needs, labels = own.pop("resource_requirements", None), own.pop("tags", None)
        options = {**own, **options}
        new = self._submission.describe(
            remote_class,
            args,
            kwargs,
            needs if resource_requirements is None else resource_requirements,
            labels if tags is None else tags,
            options,
        )
        actor = new.task.actor
        name = None if actor is None else actor.public_name
        methods, get_if_exists = methods_of(remote_class.cls), bool(options.get("get_if_exists"))
        return self._make(new, name, methods, get_if_exists=get_if_exists)

    @abstractmethod
    def _make(
        self, new: NewActorItem, name: str | None, methods: Mapping[str, MethodShape], *, get_if_exists: bool
    ) -> ActorHandle:
        """Hand it over, unless there is a living one of its name. Raises ConfigurationError."""

    def describe(
        self,
        cls: type,
        resource_requirements: Mapping[str, Any] | None,
        tags: Sequence[str] | None,
        options: Mapping[str, Any],
    ) -> TaskDescription:
        """Such an actor as the brain would see it; nothing is submitted. Raises ConfigurationError."""
        remote_class = make_remote_class(cls, {})
        return self._submission.describe(remote_class, (), None, resource_requirements, tags, options).task

    def get(self, name: str) -> ActorHandle:
        """A living actor by its name: this program's, or a detached one on any cluster. Raises UnknownItemError."""
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{name!r} is not the name of an actor.", next_step="give its name as text")
        known = self._registry.named(name)
        if known is not None:
            return known
        return self._search(name)

    @abstractmethod
    def _search(self, name: str) -> ActorHandle:
        """A living actor that this program has no handle of yet. Raises UnknownItemError."""

    def find(self, actor_id: str) -> ActorHandle | None:
        """A living actor by its id."""
        return self._registry.find(actor_id)


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

"""Actors: makes, finds and lists the actors of one control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_registry import ActorRegistry, name_taken
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape, methods_of
from ray_multicluster_scheduler.app.client_api.embedded.runtime import Runtime
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import make_remote_class
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskDescription

_log = get_logger(__name__)
LOOK_PATIENCE_S = 3.0
"""So long the maker of a detached actor waits for clusters to say whether they have one of that name."""


class Actors:
    """Safe from any thread."""

    def __init__(self, runtime: Runtime, submission: ActorSubmission) -> None:
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
        that name, which takes LOOK_PATIENCE_S at most. With ``wait`` it returns when the actor is ready; the brain ends
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
        if name is not None and actor is not None and actor.detached and self._registry.named(name) is None:
            found, silent = self._runtime.run(self._search(name, LOOK_PATIENCE_S))
            if found and get_if_exists:
                return self._adopt(name, self._one_of(name, found), methods)
            if found:
                raise name_taken(name, "a detached one", found[0])
            if silent:
                _log.warning(
                    "detached actor %r is made, but a cluster that could not be asked may have one of that name: %s",
                    name,
                    "; ".join(silent),
                )
        return self._registry.add(
            lambda: self._runtime.submit(new.shelved(self._runtime.shelf), new.arguments),
            name,
            methods,
            get_if_exists=get_if_exists,
        )

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
        found, silent = self._runtime.run(self._search(name))
        if found:
            return self._adopt(name, self._one_of(name, found), {})
        missed = f" (no answer from {'; '.join(silent)})" if silent else ""
        raise self._registry.unknown(name, f", neither of this program nor detached on a cluster{missed}")

    def find(self, actor_id: str) -> ActorHandle | None:
        """A living actor by its id."""
        return self._registry.find(actor_id)

    def _adopt(self, name: str, cluster: str, methods: Mapping[str, MethodShape]) -> ActorHandle:
        new = self._submission.adopt(name, cluster)
        return self._registry.add(
            lambda: self._runtime.submit(new.shelved(self._runtime.shelf)), name, methods, get_if_exists=True
        )

    @staticmethod
    def _one_of(name: str, clusters: Sequence[str]) -> str:
        wanted = ClusterContextManager.get()
        if wanted is not None and wanted in clusters:
            return wanted
        if len(clusters) == 1:
            return clusters[0]
        raise ConfigurationError(
            f"There is a detached actor {name!r} on each of {', '.join(clusters)}.",
            next_step=f'say which one: with ClusterContextManager.use("{clusters[0]}"): …',
        )

    async def _search(self, name: str, patience: float | None = None) -> tuple[list[str], list[str]]:
        """Clusters with a detached actor of this name that was not killed here, and what became of asking the others:
        those that cannot be asked, or do not answer in so many seconds."""
        dying = self._registry.dying(name)
        clusters = [cluster.name for cluster in self._runtime.config.clusters]
        answers = await asyncio.gather(*(self._is_on(cluster, name, patience) for cluster in clusters))
        has_one = [cluster for cluster, answer in zip(clusters, answers, strict=True) if answer is True]
        found = [cluster for cluster in has_one if cluster not in dying]
        return found, [answer for answer in answers if isinstance(answer, str)]

    async def _is_on(self, cluster: str, name: str, patience: float | None) -> bool | str:
        try:
            async with asyncio.timeout(patience):
                return await self._runtime.clients.client(cluster).has_detached_actor(name)
        except ClusterConnectionError as error:
            return f"{cluster}: {error.message}"
        except TimeoutError:
            return f"{cluster}: no answer within {patience:g} s"

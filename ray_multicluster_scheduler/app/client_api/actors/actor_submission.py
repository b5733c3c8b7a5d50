"""ActorSubmission: builds an actor's TaskDescription from a program's arguments: validated, pickled, with an id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.actor_options import without_task_options
from ray_multicluster_scheduler.app.client_api.actors.class_methods import is_asynchronous
from ray_multicluster_scheduler.app.client_api.arguments.arguments import (
    check_arguments,
    pickled,
    prepare_arguments,
    runtime_env_for,
)
from ray_multicluster_scheduler.app.client_api.options import common_fields, fields_from, start_time
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import RemoteClass
from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.home_paths import find_in_arguments
from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription, mentions_cpu, parse_resources
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache


@dataclass(frozen=True, slots=True)
class NewActorItem:
    """A validated actor, whose payload is not in the payload cache yet."""

    task: TaskDescription
    payload: bytes
    arguments: Arguments

    def put_payloads(self, payload_cache: PayloadCache) -> TaskDescription:
        """Store the payload in the payload cache; returns the description with its digests."""
        return replace(
            self.task,
            function_digest=payload_cache.put(self.payload),
            arguments_digest=payload_cache.put(self.arguments.data),
        )


class ActorSubmission:
    """Builds descriptions of actors for one control plane. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock, homes: Sequence[str], new_id: Callable[[str], str]) -> None:
        self._settings, self._clock, self._homes, self._new_id = settings, clock, homes, new_id

    def describe(
        self,
        cls: RemoteClass,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        resource_requirements: Mapping[str, Any] | None,
        tags: Sequence[str] | None,
        options: Mapping[str, Any],
    ) -> NewActorItem:
        """Raises ConfigurationError for a wrong argument, TaskSubmissionError for a value that cannot be pickled."""
        name = cls.__qualname__
        positional, named = check_arguments(args, kwargs, name)
        options = without_task_options(options)
        fields = common_fields(options, "actor", self._settings, tags)
        needs = parse_resources(resource_requirements)
        actor_id = self._new_id("actor")
        actor = replace(_actor(actor_id, needs, resource_requirements, options), asynchronous=is_asynchronous(cls.cls))
        payload, modules, captured = pickled(cls.shipped, f"the class {name}")
        if cls.by_name:
            modules = {*modules, cls.__module__}
        arguments = prepare_arguments(positional, named, name, captured)
        now = self._clock.now()
        fields["runtime_env"] = runtime_env_for(arguments, fields["runtime_env"], modules)
        task = TaskDescription(
            id=actor_id,
            kind="actor",
            name=name,
            requirements=needs,
            home_paths=find_in_arguments(positional, named, self._homes),
            actor=actor,
            submitted_at=now,
            start_after=start_time(options.get("start_after"), now),
            **{**fields, "retries": 0},
        )
        return NewActorItem(task, payload, arguments)

    def adopt(self, name: str, cluster: str) -> NewActorItem:
        """Describe a detached actor of another program, which runs on this cluster."""
        fields = common_fields({"preferred_cluster": cluster, "fallback": "wait"}, "actor", self._settings, ())
        task = TaskDescription(
            id=self._new_id("actor"),
            kind="actor",
            name=name,
            actor=ActorDescription(ray_name=name, public_name=name, lifetime="detached", adopt=True),
            submitted_at=self._clock.now(),
            **{**fields, "retries": 0},
        )
        return NewActorItem(task, b"", Arguments(b""))


def _actor(
    actor_id: str, needs: Mapping[str, float], given: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> ActorDescription:
    """As in Ray, an actor without a CPU amount needs one free CPU to be placed, and holds none."""
    name = options.get("name")
    if options.get("get_if_exists") and name is None:
        raise ConfigurationError("get_if_exists is given, but no name.", next_step="give the actor a name, too")
    return ActorDescription(
        ray_name=name if options.get("lifetime") == "detached" and name is not None else actor_id,
        placement=needs if mentions_cpu(given) else {"CPU": 1.0, **needs},
        public_name=name,
        **fields_from(ActorDescription, options),
    )

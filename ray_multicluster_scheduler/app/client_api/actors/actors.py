"""Actors: submits and finds the actors of one control plane, and keeps the registry of its living ones."""

from __future__ import annotations

import difflib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission, NewActorItem
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape, methods_of
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import make_remote_class
from ray_multicluster_scheduler.common.exception import ConfigurationError, UnknownItemError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime import fleet_control
from ray_multicluster_scheduler.control_plane.runtime.input_checks import name_taken
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class ActorRegistry:
    """The living actors of one control plane, by id and by name, with one handle each. Thread-safe. The name of a
    killed actor is free at once, before its end is confirmed."""

    def __init__(self, runtime: ControlPlane) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._by_id: dict[str, ActorHandle] = {}
        self._id_of_name: dict[str, str] = {}

    def add(
        self, submit: Callable[[], Item], name: str | None, methods: Mapping[str, MethodShape], *, get_if_exists: bool
    ) -> ActorHandle:
        """Submit an actor. If a living one has its name: return that with ``get_if_exists``, else raise
        ConfigurationError. Raises what ``submit`` raises."""
        with self._lock:
            there = self._living(name)
            if there is not None and get_if_exists:
                return there
            if there is not None:
                raise name_taken(str(name), f"{there._item.task.name} {there._item.id}", there._item.cluster)
            item = submit()
            handle = ActorHandle(self._runtime.calls_of(item), self._runtime, methods)
            self._by_id[item.id] = handle
            if name is not None:
                self._id_of_name[name] = item.id
        item.watch(self._forget_ended)
        return handle

    def named(self, name: str) -> ActorHandle | None:
        """Return the living actor of this name."""
        with self._lock:
            return self._living(name)

    def find(self, actor_id: str) -> ActorHandle | None:
        """Return the living actor of this id."""
        return self._by_id.get(actor_id)

    def clusters_of_killed(self, name: str) -> set[str | None]:
        """Return the clusters where killed actors of this name have not ended yet: Ray may still list them."""
        with self._lock:
            return {
                one._item.cluster
                for one in list(self._by_id.values())
                if one._rmcs_calls.killed and (actor := one._item.task.actor) is not None and actor.ray_name == name
            }

    def unknown(self, name: str, elsewhere: str = "") -> UnknownItemError:
        """Return the error for an unknown name; ``elsewhere`` names the other places that were searched."""
        with self._lock:
            names = sorted(known for known in self._id_of_name if self._living(known) is not None)
        close = difflib.get_close_matches(name, names, 1)
        known = f"known names: {', '.join(names)}" if names else "no actor of this program has a name"
        return UnknownItemError(
            f"There is no living actor {name!r}{elsewhere}; {known}.",
            next_step=f"did you mean {close[0]!r}?" if close else "make it with name=…, or correct the name",
        )

    def _living(self, name: str | None) -> ActorHandle | None:
        actor_id = None if name is None else self._id_of_name.get(name)
        handle = None if actor_id is None else self._by_id.get(actor_id)
        if handle is None or handle._item.outcome is not None or handle._rmcs_calls.killed:
            return None
        return handle

    def _forget_ended(self, item: Item) -> None:
        """Called by the control plane, which must not wait: a submission that holds the lock may wait for it. A name
        that is left then refers to an id that is not here."""
        self._by_id.pop(item.id, None)
        name = None if item.task.actor is None else item.task.actor.public_name
        if name is not None and self._lock.acquire(blocking=False):
            try:
                if self._id_of_name.get(name) == item.id:
                    del self._id_of_name[name]
            finally:
                self._lock.release()


class Actors(ABC):
    """Submits and finds actors. Subclasses: embedded and remote. Thread-safe."""

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
        """Submit an actor. Returns at once; with lifetime="detached" it first searches the clusters for one of that
        name, for a few seconds at most. ``wait`` returns when the actor is ready; one that is not ready within its
        ``ready_timeout``, counted from its dispatch, is ended.

        Arguments take precedence over options of the class. Raises ConfigurationError, TaskSubmissionError; with
        ``wait`` also as :meth:`ActorHandle.ready`.
        """
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
        handle = self._make(new, name, methods, get_if_exists=get_if_exists)
        return ActorHandle.ready(handle) if wait else handle

    def submit_relay(self, cls: type, cluster: str, runtime_env: Mapping[str, Any]) -> ActorHandle:
        """Submit an actor without resources that passes calls on to actors of this cluster. As :meth:`submit`."""
        options = {"preferred_cluster": cluster, "fallback": "wait", "runtime_env": runtime_env, "max_restarts": 3}
        new = self._submission.describe(make_remote_class(cls, {}), (), None, {"CPU": 0}, None, options)
        assert new.task.actor is not None
        task = replace(new.task, actor=replace(new.task.actor, relay=True))
        return self._make(replace(new, task=task), None, methods_of(cls), get_if_exists=False)

    @abstractmethod
    def _make(
        self, new: NewActorItem, name: str | None, methods: Mapping[str, MethodShape], *, get_if_exists: bool
    ) -> ActorHandle:
        """Submit the actor unless a living one has its name. Raises ConfigurationError."""

    def describe(
        self,
        cls: type,
        resource_requirements: Mapping[str, Any] | None,
        tags: Sequence[str] | None,
        options: Mapping[str, Any],
    ) -> TaskDescription:
        """Return the description of such an actor without submitting it. Raises ConfigurationError."""
        remote_class = make_remote_class(cls, {})
        return self._submission.describe(remote_class, (), None, resource_requirements, tags, options).task

    def get(self, name: str) -> ActorHandle:
        """Return a living actor by its name: of this program, or detached on any cluster. Raises UnknownItemError."""
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{name!r} is not the name of an actor.", next_step="give its name as text")
        return self._registry.named(name) or self._search(name)

    @abstractmethod
    def _search(self, name: str) -> ActorHandle:
        """Find a living actor that this program has no handle of yet. Raises UnknownItemError."""

    def find(self, actor_id: str) -> ActorHandle | None:
        """Return a living actor by its id."""
        return self._registry.find(actor_id)


class EmbeddedActors(Actors):
    """The actors of a control plane in this process. Thread-safe."""

    def __init__(self, runtime: Runtime, submission: ActorSubmission) -> None:
        super().__init__(runtime, submission)
        self._here = runtime

    def _make(
        self, new: NewActorItem, name: str | None, methods: Mapping[str, MethodShape], *, get_if_exists: bool
    ) -> ActorHandle:
        actor = new.task.actor
        if name is not None and actor is not None and actor.detached and self._registry.named(name) is None:
            found, silent = self._find_detached(name, fleet_control.SEARCH_TIMEOUT_S)
            if found and get_if_exists:
                return self._adopt(name, fleet_control.choose_cluster(name, found), methods)
            if found:
                raise name_taken(name, "a detached one", found[0])
            fleet_control.warn_unreachable(silent, name)
        return self._registry.add(
            lambda: self._runtime.submit(new.put_payloads(self._runtime.payload_cache), new.arguments),
            name,
            methods,
            get_if_exists=get_if_exists,
        )

    def _search(self, name: str) -> ActorHandle:
        found, silent = self._find_detached(name)
        if found:
            return self._adopt(name, fleet_control.choose_cluster(name, found), {})
        missed = f" (no answer from {'; '.join(silent)})" if silent else ""
        raise self._registry.unknown(name, f", neither of this program nor detached on a cluster{missed}")

    def _find_detached(self, name: str, patience: float | None = None) -> tuple[list[str], list[str]]:
        ending = self._registry.clusters_of_killed(name)
        return self._here.run(fleet_control.find_detached_actor(self._here, name, ending, patience))

    def _adopt(self, name: str, cluster: str, methods: Mapping[str, MethodShape]) -> ActorHandle:
        new = self._submission.adopt(name, cluster)
        return self._registry.add(
            lambda: self._runtime.submit(new.put_payloads(self._runtime.payload_cache)),
            name,
            methods,
            get_if_exists=True,
        )

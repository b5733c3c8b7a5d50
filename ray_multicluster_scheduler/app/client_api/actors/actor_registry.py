"""ActorRegistry: the actors of one control plane that are not over, by id and by name."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape
from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import name_taken


class ActorRegistry:
    """Each living actor has one handle here, so that whoever asks for it gets the same. The name of one that was killed
    is free at once, though its end takes a while. Safe from any thread."""

    def __init__(self, runtime: ControlPlane) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._by_id: dict[str, ActorHandle] = {}
        self._id_of_name: dict[str, str] = {}

    def add(
        self, submit: Callable[[], Item], name: str | None, methods: Mapping[str, MethodShape], *, get_if_exists: bool
    ) -> ActorHandle:
        """Submit an actor under a name that no other living one has; with ``get_if_exists`` the one that has it is
        returned instead. Raises ConfigurationError, and what ``submit`` raises."""
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
        item.watch(self._over)
        return handle

    def named(self, name: str) -> ActorHandle | None:
        """The living actor of this name."""
        with self._lock:
            return self._living(name)

    def find(self, actor_id: str) -> ActorHandle | None:
        """The living actor of this id."""
        return self._by_id.get(actor_id)

    def living(self) -> list[ActorHandle]:
        """Oldest first."""
        with self._lock:
            return list(self._by_id.values())

    def dying(self, name: str) -> set[str | None]:
        """Where detached actors of this name were killed and are not over yet: Ray may still tell of them there."""
        with self._lock:
            return {
                one._item.cluster
                for one in self._by_id.values()
                if one._rmcs_calls.killed and (actor := one._item.task.actor) is not None and actor.ray_name == name
            }

    def unknown(self, name: str, elsewhere: str = "") -> UnknownItemError:
        """There is no living actor of this name; ``elsewhere`` tells what else was looked at."""
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

    def _over(self, item: Item) -> None:
        with self._lock:
            self._by_id.pop(item.id, None)
            name = None if item.task.actor is None else item.task.actor.public_name
            if name is not None and self._id_of_name.get(name) == item.id:
                del self._id_of_name[name]

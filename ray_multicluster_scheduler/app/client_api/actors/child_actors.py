"""Handles, in a program, of actors that its tasks and actors made inside a cluster and returned.

The program calls them through a :class:`ChildRelay` on their cluster. Sent back to that cluster, a handle is a plain
handle of Ray again. As in Ray, such an actor ends with its creator: the actor that made it, or the worker of the task.
"""

from __future__ import annotations

import asyncio
import html
import itertools
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle, own_method
from ray_multicluster_scheduler.app.client_api.actors.actor_reference import ChildReference, restore_child
from ray_multicluster_scheduler.app.client_api.actors.child_relay import ChildRelay
from ray_multicluster_scheduler.app.client_api.actors.class_methods import HandleAttribute, MethodShape, RemoteMethod
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.several_returns import DYNAMIC, STREAMING
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Item, Promise

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actors import Actors

_ANSWER_S = 60.0


class ChildMethod(RemoteMethod):
    """A method of an actor that was made inside a cluster."""

    __slots__ = ("_child", "_name", "_num_returns")

    def __init__(
        self, child: ChildActorHandle, name: str, num_returns: int, own: Callable[..., Any] | None = None
    ) -> None:
        self._child, self._name, self._num_returns, self._own = child, name, num_returns, own

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`ActorMethod.remote`."""
        if self._num_returns in (STREAMING, DYNAMIC):
            raise ConfigurationError(
                f"{self!r} is a generator of an actor that was made inside a cluster; its values are read there only.",
                next_step="return a list, or make the actor in this program",
            )
        child = self._child
        call = child._rmcs_relay().method("call").options(num_returns=self._num_returns)
        about = child._rmcs_child.actor_id, next(child._rmcs_numbers), self._name, self._num_returns
        return call.remote(child, *about, *args, **kwargs)

    def _returning(self, num_returns: int) -> ChildMethod:
        return ChildMethod(self._child, self._name, num_returns, self._own)

    def __repr__(self) -> str:
        return f"<ChildMethod {self._name} of {self._child!r}>"


class ChildActorHandle(ActorHandle):
    """As ActorHandle. Ray manages the actor; ``state``, ``explain`` and ``kill`` ask its cluster and wait for the
    answer."""

    _rmcs_relay: Callable[[], ActorHandle]
    _rmcs_child: ChildReference
    _rmcs_numbers: Iterator[int]

    def __init__(self, runtime: ControlPlane, relay: Callable[[], ActorHandle], child: ChildReference) -> None:
        """``relay`` returns the living relay; the first use of this handle creates it."""
        for name, number in child.methods.items():
            self.__dict__[name] = ChildMethod(self, name, number, own_method(self, name))
        methods = {name: MethodShape(number) for name, number in child.methods.items()}
        self.__dict__.update(_rmcs_runtime=runtime, _rmcs_methods=methods, _rmcs_relay=relay, _rmcs_child=child)
        self.__dict__["_rmcs_numbers"] = itertools.count()  # of the calls

    @HandleAttribute
    def id(self) -> str:
        """Ray's id of the actor."""
        return self._rmcs_child.actor_id

    @HandleAttribute
    def name(self) -> str:
        """The name that it was given, or that of its class."""
        return self._rmcs_child.name

    @HandleAttribute
    def cluster(self) -> str:
        """The cluster where it was made."""
        return self._rmcs_child.cluster

    @HandleAttribute
    def attempt(self) -> int:
        """Always 1: restarts by Ray do not count."""
        return 1

    @HandleAttribute
    def state(self) -> TaskState:
        """RUNNING if it answers at once; DISPATCHING while it starts or is busy; FAILED when it is dead."""
        return TaskState(ChildActorHandle.explain(self)["state"])

    def accepted(self, timeout: float | None = None) -> bool:
        """True: it was made before this handle."""
        return True

    def ready(self, timeout: float | None = None) -> Self:
        """As :meth:`ActorHandle.ready`."""
        self._rmcs_ask("ready", timeout)
        return self

    def _rmcs_end(self) -> bool:
        return bool(self._rmcs_ask("_rmcs_end"))

    def explain(self) -> dict[str, Any]:
        """Return the item that made it, its cluster and state."""
        return dict(self._rmcs_ask("explain"))

    def logs(self, *, stream: str | None = None) -> str:
        """Return where to find its output, which Ray keeps."""
        return str(self._rmcs_ask("logs"))

    def follow_logs(self) -> Iterator[str]:
        """As :meth:`logs`."""
        return iter([ChildActorHandle.logs(self)])

    def method(self, name: str) -> Any:
        """As :meth:`ActorHandle.method`."""
        known = super().method(name)
        return known if isinstance(known, ChildMethod) else ChildMethod(self, name, 1)

    def __getattr__(self, name: str) -> Any:
        if name in ("_item", "_rmcs_calls"):
            return getattr(self.__dict__["_rmcs_relay"](), name)
        if name.startswith("_") or "_rmcs_child" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return ChildActorHandle.method(self, name)

    def __await__(self) -> Generator[Any, None, Self]:
        return asyncio.to_thread(ChildActorHandle.ready, self).__await__()

    def __repr__(self) -> str:
        child = self._rmcs_child
        return f"<ChildActorHandle {child.actor_id} {child.name} on {child.cluster!r}>"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle Ray's handle, restored inside its cluster, or as this handle."""
        return restore_child, tuple(self._rmcs_child)

    _rmcs_reference = __reduce__

    def _rmcs_ask(self, question: str, timeout: float | None = _ANSWER_S) -> Any:
        return self._rmcs_relay().method("ask").remote(self, question).result(timeout)


class ChildActors:
    """Makes these handles, and the relays, for one control plane. Thread-safe."""

    def __init__(self, runtime: ControlPlane, actors: Callable[[], Actors]) -> None:
        self._runtime, self._actors = runtime, actors
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[str, ChildActorHandle] = weakref.WeakValueDictionary()
        self._relay_lock = threading.Lock()
        self._relays: dict[tuple[str, str], ActorHandle] = {}

    def handle(self, child: ChildReference, source: Promise) -> ChildActorHandle:
        """Return the handle, the same for the same actor. ``source`` returned it; its relay loads modules as that."""
        item = source.actor.item if isinstance(source, CallPromise) else source
        env = dict(item.task.runtime_env) if isinstance(item, Item) else {}
        with self._lock:
            known = self._known.get(child.actor_id)
            if known is None:
                relay = partial(self._relay, child.cluster, env)
                known = self._known[child.actor_id] = ChildActorHandle(self._runtime, relay, child)
            return known

    def _relay(self, cluster: str, env: dict[str, Any]) -> ActorHandle:
        """Return the living relay. Raises what a submission raises."""
        key = cluster, repr(env)
        with self._relay_lock:
            relay = self._relays.get(key)
            if relay is None or relay._item.outcome is not None:
                relay = self._relays[key] = self._actors().submit_relay(ChildRelay, cluster, env)
            return relay

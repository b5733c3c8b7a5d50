"""Actor handles inside a cluster: of Ray's own actors, and proxies of actors that programs created outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FunctionType
from typing import Any, Self

from ray_multicluster_scheduler.app.client_api.actors.actor_reference import ChildReference, restore, restore_child
from ray_multicluster_scheduler.app.client_api.actors.class_methods import HandleAttribute, RemoteMethod
from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.errors import take_init_error, translate
from ray_multicluster_scheduler.app.client_api.in_cluster.generators import NativeObjectRefGenerator
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import (
    NativeCallHandle,
    NativeTaskHandle,
    explain_child,
)
from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.exception import (
    ActorDiedError,
    ConfigurationError,
    RemoteTraceback,
    TaskTimeoutError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE
from ray_multicluster_scheduler.common.model.states import TaskState
from ray_multicluster_scheduler.common.several_returns import rays_num_returns

_DEATH_TIMEOUT_S = 5.0  # for a kill to take effect; on a node that does not answer it may take longer


class NativeMethod(RemoteMethod):
    """A method of an actor: ``actor.method.remote(x)``."""

    __slots__ = ("_actor", "_name", "_options")

    def __init__(
        self, actor: NativeActorHandle, name: str, options: Mapping[str, Any], own: Callable[..., Any] | None = None
    ) -> None:
        self._actor, self._name, self._options, self._own = actor, name, options, own

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; returns a handle, several for ``num_returns`` above 1, None for 0."""
        return self._actor._rmcs_call(self._name, args, kwargs, self._options)

    def _returning(self, num_returns: int) -> NativeMethod:
        return NativeMethod(self._actor, self._name, {"num_returns": rays_num_returns(num_returns)}, self._own)

    def __repr__(self) -> str:
        return f"<NativeMethod {self._name} of {self._actor!r}>"


class NativeActorHandle:
    """An actor on the cluster where this code runs. Can be sent to other tasks and actors there; awaitable. ``methods``
    maps the names of its methods to their numbers of return values; empty if they are unknown. A method of the user's
    class hides an attribute of this class with the same name."""

    _rmcs_actor_handle = True

    def __init__(self, actor: Any, name: str, parent: CurrentItem, methods: Mapping[str, int]) -> None:
        self._actor, self._name, self._parent, self._methods = actor, name, parent, dict(methods)
        for method in methods:
            self.__dict__[method] = self.method(method)

    @HandleAttribute
    def id(self) -> str:
        """Ray's id of the actor."""
        return self._id()

    @HandleAttribute
    def name(self) -> str:
        """The name that it was given, or that of its class."""
        return self._name

    def accepted(self, timeout: float | None = None) -> bool:
        """True: Ray accepted it at once."""
        return True

    @HandleAttribute
    def cluster(self) -> str:
        """The cluster that this code runs on."""
        return self._parent.cluster

    @HandleAttribute
    def attempt(self) -> int:
        """Always 1: restarts by Ray do not count."""
        return 1

    @HandleAttribute
    def state(self) -> TaskState:
        """RUNNING if it answers at once; DISPATCHING while it starts or is busy; FAILED when it is dead."""
        try:
            NativeActorHandle.ready(self, 0.5)
        except TaskTimeoutError:
            return TaskState.DISPATCHING
        except Exception:  # noqa: BLE001 - calls of its methods raise the reason
            return TaskState.FAILED
        return TaskState.RUNNING

    def kill(self, *, no_restart: bool = True) -> None:
        """Kill it at once, with its running calls. Later calls raise ActorDiedError, unless it restarts."""
        ray = runtime_context.connected_ray()
        ray.kill(self._actor, no_restart=no_restart)
        if no_restart:
            self._wait_until_dead(ray)

    def _rmcs_end(self) -> bool:
        """Kill it. False: it had ended already."""
        alive = NativeActorHandle.state.__get__(self, NativeActorHandle) is not TaskState.FAILED
        NativeActorHandle.kill(self)
        return alive

    def ready(self, timeout: float | None = None) -> Self:
        """Wait until it takes calls. Raises what its constructor raised, TaskTimeoutError, ActorDiedError."""
        ray = runtime_context.connected_ray()
        try:
            ray.get(self._actor.__ray_ready__.remote(), timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise TaskTimeoutError(
                f"{self!r} is not ready after {timeout:g} s.",
                task_id=self._id(),
                cluster=self._parent.cluster,
                next_step="check that the cluster has the resources it requests, or wait longer (ready_timeout)",
            ) from None
        except ray.exceptions.RayError as error:
            ours = self._translated(error)
            raise ours from ours.__cause__
        return self

    def method(self, name: str) -> NativeMethod:
        """A method by its name. Raises AttributeError for one that its class does not have."""
        if self._methods and name not in self._methods and not name.startswith("__"):
            raise AttributeError(f"actor {self._name!r} has no method {name!r}; it has {', '.join(self._methods)}")
        returns = self._methods.get(name, 1)
        own = vars(NativeActorHandle).get(name)
        bound = own.__get__(self) if isinstance(own, FunctionType) else None
        return NativeMethod(self, name, {} if returns == 1 else {"num_returns": rays_num_returns(returns)}, bound)

    def logs(self, *, stream: str | None = None) -> str:
        """Error that names where its output is, which Ray keeps."""
        return (
            f"(Ray keeps the output of {self._name} on cluster {self._parent.cluster!r}: see actor {self._id()} in the "
            f"cluster's dashboard, or `ray logs actor --id {self._id()}` there)"
        )

    def follow_logs(self) -> Iterator[str]:
        """The same as :meth:`logs`: Ray keeps its output."""
        return iter([NativeActorHandle.logs(self)])

    def explain(self) -> dict[str, Any]:
        """Its parent item, cluster and state."""
        state = NativeActorHandle.state.__get__(self, NativeActorHandle)
        return explain_child(self._id(), "actor", self._name, state, self._parent)

    def __await__(self) -> Generator[Any, None, Self]:
        return asyncio.to_thread(NativeActorHandle.ready, self).__await__()

    def __getattr__(self, name: str) -> NativeMethod:
        # Called for missing names only. Python and notebooks look up special names on every object.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return NativeActorHandle.method(self, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id()} {self._name} on {self._parent.cluster!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NativeActorHandle) and other._id() == self._id()

    def __hash__(self) -> int:
        return hash(self._id())

    def __reduce__(self) -> tuple[Any, ...]:
        if runtime_context.is_ray_pickling():
            return type(self), (self._actor, self._name, self._parent, self._methods)
        # Ray keeps an actor alive whose handle was pickled like this, for as long as this process lives.
        state = runtime_context.connected_ray().cloudpickle.dumps(self._actor)
        parent = self._parent
        fields = parent.id, parent.attempt, parent.fence, parent.cluster
        return restore_child, tuple(
            ChildReference(self._id(), parent.cluster, self._name, self._methods, fields, state)
        )

    def _id(self) -> str:
        return str(self._actor._actor_id.hex())

    def _wait_until_dead(self, ray: Any) -> None:
        # Ray's kill is asynchronous: of calls made right after it, one in three was still answered.
        end = time.monotonic() + _DEATH_TIMEOUT_S
        try:
            while time.monotonic() < end:
                ray.get(self._actor.__ray_ready__.remote(), timeout=_DEATH_TIMEOUT_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return

    def _rmcs_call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Any:
        bound = getattr(self._actor, method)
        if options:
            bound = bound.options(**options)
        given = {key: as_argument(value) for key, value in kwargs.items()}
        refs = bound.remote(*map(as_argument, args), **given)
        return wrap_refs(refs, f"{self._name}.{method}", runtime_context.item(), NativeCallHandle)

    def _translated(self, error: BaseException) -> BaseException:
        """Return why it is not ready: the constructor's own exception, or Ray's error converted."""
        name, own_id, cluster = self._name, self._id(), self._parent.cluster
        ours = translate(error, name, own_id, cluster)
        raised = take_init_error(own_id) if isinstance(ours, ActorDiedError) else None
        if raised is None:
            return ours
        raised.add_note(f"raised by the constructor of {name} ({own_id}) on cluster {cluster!r}")
        raised.__cause__ = RemoteTraceback(str(error))
        return raised


def as_argument(value: Any) -> Any:
    """Replace a handle by its Ray reference, for which Ray passes the value."""
    return value.ref if isinstance(value, NativeTaskHandle) else value


def wrap_refs(refs: Any, name: str, parent: CurrentItem, kind: type[NativeTaskHandle]) -> Any:
    """Wrap what Ray returned for a call in handles: one, a list of several, or None for no return value."""
    if refs is None:
        return None
    if hasattr(type(refs), "__next__"):
        return NativeObjectRefGenerator(refs, name, parent, kind)
    if isinstance(refs, list):
        return [kind(ref, name, parent) for ref in refs]
    return kind(refs, name, parent)


class ActorProxy(NativeActorHandle):
    """A program's actor handle inside the actor's cluster. Its calls are plain calls of Ray, through the actor's
    shell."""

    def __init__(
        self, shell: Any, ray_name: str, parent: CurrentItem, methods: Mapping[str, int], sent_as: str | None
    ) -> None:
        """``sent_as`` is the cluster that its program pickled with it; back in the program it identifies the actor."""
        super().__init__(shell, ray_name, parent, methods)
        self._sent_as = sent_as

    def _rmcs_call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Any:
        bound = self._actor.native_call
        if options:
            bound = bound.options(**options)
        # Each is a separate argument, so that Ray replaces references by their values.
        values = [as_argument(one) for one in (*args, *kwargs.values())]
        refs = bound.remote(method, tuple(kwargs), *values)
        return wrap_refs(refs, f"{self._name}.{method}", runtime_context.item(), NativeCallHandle)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (self._name, self._sent_as, self._methods)


def rebuild_actor(ray_name: str, cluster: str | None, methods: Mapping[str, int]) -> ActorProxy:
    """Return the proxy of an actor. Raises ConfigurationError on another cluster, ActorDiedError if it has ended."""
    item = runtime_context.item()
    if cluster not in (None, item.cluster):
        raise ConfigurationError(
            f"Actor {ray_name!r} runs on cluster {cluster!r}, and this code inside {item.cluster!r}.",
            cluster=item.cluster,
            next_step=f'submit the items that use it with preferred_cluster="{cluster}", fallback="wait"',
        )
    try:
        shell = runtime_context.connected_ray().get_actor(ray_name, namespace=ACTOR_NAMESPACE)
    except ValueError as error:
        raise ActorDiedError(
            f"Actor {ray_name!r} has ended on cluster {item.cluster!r}: {error}.",
            task_id=ray_name,
            cluster=item.cluster,
            next_step="create a new actor and pass that",
        ) from error
    return ActorProxy(shell, ray_name, item, methods, cluster)


def rebuild_child(child: ChildReference) -> NativeActorHandle:
    """Return the handle of an actor that left this cluster. Raises ConfigurationError on another cluster."""
    here = runtime_context.item().cluster
    if child.cluster != here:
        raise ConfigurationError(
            f"Actor {child.name} ({child.actor_id}) was created inside cluster {child.cluster!r}, and this code runs "
            f"inside {here!r}: it cannot be called from there.",
            task_id=child.actor_id,
            cluster=here,
            next_step="pass get(…) of what returned it: the item that uses it then runs on its cluster",
        )
    actor = runtime_context.connected_ray().cloudpickle.loads(child.state)
    return NativeActorHandle(actor, child.name, CurrentItem(*child.parent), child.methods)


def find_actor(name: str) -> ActorProxy:
    """A detached actor of ours on this cluster, by its public name. Raises UnknownItemError."""
    item = runtime_context.item()
    try:
        return ActorProxy(
            runtime_context.connected_ray().get_actor(name, namespace=ACTOR_NAMESPACE), name, item, {}, item.cluster
        )
    except ValueError:
        raise UnknownItemError(
            f"There is no living actor {name!r} on cluster {item.cluster!r}.",
            task_id=name,
            cluster=item.cluster,
            next_step="correct the name, or pass the handle of the program's actor as an argument: inside a cluster "
            "only detached actors, and those created inside, are found by name",
        ) from None

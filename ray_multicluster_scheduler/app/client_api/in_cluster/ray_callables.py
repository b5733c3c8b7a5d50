"""Turns a user's function or class into what Ray calls: wrapped where needed, with its options, cached.

The wrapper sets, in the child's worker, the item that the child belongs to. Functions of a job need no wrapper: Ray
gives the job's environment, which names the item, to all its workers. A worker that runs a task serves many items, so
there the item travels with the call.
"""

from __future__ import annotations

import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, TypeAlias, TypeVar

from ray_multicluster_scheduler.app.client_api.actors.class_methods import methods_of
from ray_multicluster_scheduler.app.client_api.in_cluster import errors, options, runtime_context
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_function
from ray_multicluster_scheduler.common import current_item
from ray_multicluster_scheduler.common.current_item import CurrentItem, in_environment
from ray_multicluster_scheduler.common.exception import ActorNameTakenError, ConfigurationError, TaskSubmissionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.several_returns import is_generator

ParentFields: TypeAlias = tuple[str, int, int, str]
"""A CurrentItem as plain data, which is cheaper for Ray to send."""

T = TypeVar("T")
_NAMES = ("__name__", "__qualname__", "__module__", "__doc__")


def parent_fields(item: CurrentItem) -> ParentFields:
    """Return the first argument of a wrapped function or class."""
    return item.id, item.attempt, item.fence, item.cluster


def wrap_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its parent item is a new first argument."""

    def call(parent: ParentFields, /, *args: Any, **kwargs: Any) -> Any:
        before = current_item.get_current()
        current_item.set_current(CurrentItem(*parent))
        try:
            return fn(*args, **kwargs)
        finally:
            current_item.set_current(before)

    def generator(parent: ParentFields, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        before = current_item.get_current()
        current_item.set_current(CurrentItem(*parent))
        try:
            for value in fn(*args, **kwargs):  # noqa: UP028 - Ray sends into it
                yield value
        finally:
            current_item.set_current(before)

    child = generator if is_generator(fn) else call
    # Not functools.wraps: Ray would follow it to the signature of `fn`, which lacks the first argument.
    for name in _NAMES:
        setattr(child, name, getattr(fn, name, getattr(type(fn), name, None)))
    return child


def wrap_class(cls: Any) -> type:
    """Subclass a class so that its constructor takes the parent item first. Raises TypeError if that is impossible."""

    constructor: Any = cls.__init__

    def construct(self: Any, parent: ParentFields, /, *args: Any, **kwargs: Any) -> None:
        current_item.set_current(CurrentItem(*parent))  # never reset: an actor has its own process
        try:
            constructor(self, *args, **kwargs)
        except Exception as error:
            errors.store_init_error(error)
            raise

    def body(namespace: dict[str, Any]) -> None:
        namespace["__init__"] = construct
        namespace.update({name: getattr(cls, name, None) for name in _NAMES if name != "__name__"})

    return types.new_class(cls.__name__, (cls,), exec_body=body)


class CallableCache(Generic[T]):
    """LRU cache of what was made of functions and classes. Thread-safe. It keeps them alive with all that their
    closures hold, since Ray's objects refer to them; so it is small."""

    def __init__(self, max_count: int = 100) -> None:
        self._max_count = max_count
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, Any], tuple[Any, T]] = OrderedDict()

    def get(self, of: Any, key: Any, make: Callable[[], T]) -> T:
        """The cached object for this key, made now if there is none."""
        place = id(of), key  # by identity: not every callable can be hashed
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None:
                self._kept.move_to_end(place)
                return kept[1]
        made = make()
        with self._lock:
            self._kept[place] = of, made  # keeps ``of`` alive, so that its id is not reused
            if len(self._kept) > self._max_count:
                self._kept.popitem(last=False)
        return made


_log = get_logger(__name__)
DETACHED_NAMESPACE = "rmcs-inside"
"""Ray namespace of detached actors that were made inside this cluster."""


def own_namespace() -> str | None:
    """Ray namespace of the other named actors of this item; None in a job, which has its own. Actors of tasks would
    otherwise share the agent's namespace."""
    return None if in_environment() else f"{DETACHED_NAMESPACE}-{runtime_context.item().id}"


@dataclass(frozen=True, slots=True)
class RemoteCallable:
    """Ray's object, ready for ``.remote()``. ``takes_parent``: its first argument is the parent item. ``methods``: of a
    class, the number of return values of each method."""

    target: Any
    name: str
    takes_parent: bool
    methods: Mapping[str, int]


class RemoteCallables:
    """Makes and caches remote functions and classes. Thread-safe."""

    def __init__(self, runtime_env: Mapping[str, Any] | None = None) -> None:
        """``runtime_env`` applies to all; each one's own overrides it."""
        self._runtime_env = dict(runtime_env or {})
        self._ready: CallableCache[RemoteCallable] = CallableCache()
        self._bases: CallableCache[Any] = CallableCache()
        self._classes: CallableCache[type] = CallableCache()

    def of_function(
        self, fn: Any, needs: Mapping[str, Any] | None, given: Mapping[str, Any], cluster: str
    ) -> RemoteCallable:
        """Accepts a plain function and a remote one, ours or Ray's. Raises ConfigurationError, TaskSubmissionError."""
        own = dict(getattr(fn, "submit_options", {}))
        merged = {**own, **given}
        options.check_place(merged, cluster)
        if needs is None and not given:
            return self._ready.get(fn, ("ready", in_environment()), lambda: self._function(fn, merged, cluster))
        if needs is not None:
            merged["resource_requirements"] = needs
        return self._function(fn, merged, cluster)

    def of_class(
        self, cls: Any, needs: Mapping[str, Any] | None, given: Mapping[str, Any], cluster: str
    ) -> RemoteCallable:
        """As :meth:`of_function`, for a class."""
        merged = {**getattr(cls, "submit_options", {}), **given}
        options.check_place(merged, cluster)
        if needs is not None:
            merged["resource_requirements"] = needs
        plain, ray_options = _plain_class(cls)
        wrapped = self._wrapped_class(plain)
        base = self._base(plain, ray_options, lambda: wrapped)
        methods = {name: shape.num_returns for name, shape in methods_of(plain).items()}
        chosen = options.actor_options(merged.pop("resource_requirements", None), merged, cluster)
        namespace = DETACHED_NAMESPACE if chosen.get("lifetime") == "detached" else own_namespace()
        if "name" in chosen and namespace is not None:
            chosen["namespace"] = namespace
        name = str(merged.get("name") or plain.__qualname__)
        return RemoteCallable(
            self._with_options(base, chosen, merged.get("runtime_env"), name, cluster),
            name,
            wrapped is not plain,
            methods,
        )

    def _function(self, fn: Any, given: dict[str, Any], cluster: str) -> RemoteCallable:
        plain, ray_options = _plain_function(fn)
        base = self._base(plain, ray_options, lambda: _to_function(plain))
        name = str(given.get("name") or getattr(plain, "__qualname__", type(plain).__qualname__))
        rest = {key: value for key, value in given.items() if key != "resource_requirements"}
        chosen = options.task_options(given.get("resource_requirements"), rest, cluster, default_cpu=not ray_options)
        if is_generator(plain):
            chosen.setdefault("num_returns", "streaming")
        return RemoteCallable(
            self._with_options(base, chosen, given.get("runtime_env"), name, cluster), name, not in_environment(), {}
        )

    def _base(self, plain: Any, ray_options: Mapping[str, Any], wrapped: Callable[[], Any]) -> Any:
        """Return Ray's object without our options, cached, since Ray pickles and sends each new one."""

        def make() -> Any:
            ray = runtime_context.connected_ray()
            return ray.remote(**ray_options)(wrapped()) if ray_options else ray.remote(wrapped())

        return self._bases.get(plain, ("base", in_environment(), repr(ray_options)), make)

    def _wrapped_class(self, plain: type) -> type:
        def make() -> type:
            try:
                return wrap_class(plain)
            except TypeError as error:
                _log.info(
                    "%s cannot be wrapped, so its actor does not know its parent item: %s", plain.__qualname__, error
                )
                return plain

        return self._classes.get(plain, "child", make)

    def _with_options(self, base: Any, chosen: dict[str, Any], given: Any, name: str, cluster: str) -> Any:
        if given or self._runtime_env:
            env = runtime_context.merged_environments(self._runtime_env, given or {})
            inherited = runtime_context.connected_ray().get_runtime_context().runtime_env
            chosen = {**chosen, "runtime_env": runtime_context.with_inherited_modules(env, inherited)}
        try:
            return base.options(**chosen) if chosen else base
        except Exception as error:
            raise submission_error(name, cluster, error) from error


def _plain_function(fn: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The user's function, and the options of Ray's decorator."""
    plain = getattr(fn, "function", fn) if hasattr(fn, "submit_options") else fn
    ray_options: dict[str, Any] = {}
    if isinstance(plain, runtime_context.connected_ray().remote_function.RemoteFunction):
        ray_options = {key: value for key, value in plain._default_options.items() if value is not None}
        plain = plain._function
    check_function(plain, generators=True)
    return plain, ray_options


def _plain_class(cls: Any) -> tuple[type, dict[str, Any]]:
    plain = getattr(cls, "cls", cls) if hasattr(cls, "submit_options") else cls
    ray_options: dict[str, Any] = {}
    if isinstance(plain, runtime_context.connected_ray().actor.ActorClass):
        ray_options = {key: value for key, value in plain._default_options.items() if value is not None}
        plain = plain.__ray_metadata__.modified_class.__ray_actor_class__
    if not isinstance(plain, type):
        raise ConfigurationError(
            f"submit_actor was given {cls!r} ({type(cls).__name__}), which is not a class.",
            next_step="pass the class itself: submit_actor(Counter, args=(1,))",
        )
    return plain, ray_options


def _to_function(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function, as Ray requires, also for a built-in, a partial or a class."""
    if not in_environment():
        return wrap_function(plain)
    if isinstance(plain, FunctionType):
        return plain

    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return call


def submission_error(name: str, cluster: str, error: Exception) -> TaskSubmissionError | ActorNameTakenError:
    """Return the exception for a submission that Ray refused."""
    if isinstance(error, ValueError) and "already" in str(error):
        return ActorNameTakenError(
            f"Ray refused {name} on cluster {cluster!r}: {error}",
            cluster=cluster,
            next_step="use it with get_actor(name) or get_if_exists=True, kill it first, or take another name",
        )
    return TaskSubmissionError(
        f"Ray refused {name} on cluster {cluster!r}: {type(error).__name__}: {error}.",
        cluster=cluster,
        next_step="fix the cause that Ray names; open files, locks and connections cannot be passed",
    )

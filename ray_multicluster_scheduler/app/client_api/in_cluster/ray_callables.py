"""From a user's function or class to what Ray calls: wrapped where needed, with its options, made once each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.class_methods import methods_of
from ray_multicluster_scheduler.app.client_api.in_cluster import options, runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.child_wrapper import Made, class_of_child, function_of_child
from ray_multicluster_scheduler.common.current_item import in_environment
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskSubmissionError
from ray_multicluster_scheduler.common.logging import get_logger

_log = get_logger(__name__)
DETACHED_NAMESPACE = "rmcs-inside"
"""Where detached actors that were made inside are found by other jobs and tasks of the same cluster."""


def own_namespace() -> str | None:
    """Where other named actors of this item are. A job has its own namespace anyway; what tasks make would get into
    that of the agent, among the actors of others."""
    return None if in_environment() else f"{DETACHED_NAMESPACE}-{runtime_context.item().id}"


@dataclass(frozen=True, slots=True)
class Remote:
    """Ray's object, ready for ``.remote()``.

    ``adopted``: it takes whose child it is as its first argument. ``methods``: of a class, how many values each has.
    """

    target: Any
    name: str
    adopted: bool
    methods: Mapping[str, int]


class Remotes:
    """Keeps the last ones that it made, and with them the functions and classes they are of. Safe from any thread."""

    def __init__(self, runtime_env: Mapping[str, Any] | None = None) -> None:
        """``runtime_env`` is for all, below each one's own."""
        self._runtime_env = dict(runtime_env or {})
        self._ready: Made[Remote] = Made()
        self._bases: Made[Any] = Made()
        self._classes: Made[type] = Made()

    def of_function(self, fn: Any, needs: Mapping[str, Any] | None, given: Mapping[str, Any], cluster: str) -> Remote:
        """For a function, a remote function of ours or Ray's. Raises ConfigurationError, TaskSubmissionError."""
        own = dict(getattr(fn, "submit_options", {}))
        merged = {**own, **given}
        options.check_place(merged, cluster)
        if needs is None and not given:
            return self._ready.get(fn, ("ready", in_environment()), lambda: self._function(fn, merged, cluster))
        if needs is not None:
            merged["resource_requirements"] = needs
        return self._function(fn, merged, cluster)

    def of_class(self, cls: Any, needs: Mapping[str, Any] | None, given: Mapping[str, Any], cluster: str) -> Remote:
        """The same for a class."""
        merged = {**getattr(cls, "submit_options", {}), **given}
        options.check_place(merged, cluster)
        if needs is not None:
            merged["resource_requirements"] = needs
        plain, theirs = _plain_class(cls)
        wrapped = self._wrapped_class(plain)
        base = self._base(plain, theirs, lambda: wrapped)
        methods = {name: shape.num_returns for name, shape in methods_of(plain).items()}
        chosen = options.actor_options(merged.pop("resource_requirements", None), merged, cluster)
        namespace = DETACHED_NAMESPACE if chosen.get("lifetime") == "detached" else own_namespace()
        if "name" in chosen and namespace is not None:
            chosen["namespace"] = namespace
        name = str(merged.get("name") or plain.__qualname__)
        return Remote(
            self._with_options(base, chosen, merged.get("runtime_env"), name, cluster),
            name,
            wrapped is not plain,
            methods,
        )

    def _function(self, fn: Any, given: dict[str, Any], cluster: str) -> Remote:
        plain, theirs = _plain_function(fn)
        base = self._base(plain, theirs, lambda: _as_function(plain))
        name = str(given.get("name") or getattr(plain, "__qualname__", type(plain).__qualname__))
        rest = {key: value for key, value in given.items() if key != "resource_requirements"}
        chosen = options.task_options(given.get("resource_requirements"), rest, cluster, default_cpu=not theirs)
        return Remote(
            self._with_options(base, chosen, given.get("runtime_env"), name, cluster), name, not in_environment(), {}
        )

    def _base(self, plain: Any, theirs: Mapping[str, Any], wrapped: Callable[[], Any]) -> Any:
        """Ray's object for it, without options of ours. Each new one is pickled and sent anew, so it is kept."""

        def make() -> Any:
            ray = runtime_context.connected_ray()
            return ray.remote(**theirs)(wrapped()) if theirs else ray.remote(wrapped())

        return self._bases.get(plain, ("base", in_environment(), repr(theirs)), make)

    def _wrapped_class(self, plain: type) -> type:
        def make() -> type:
            try:
                return class_of_child(plain)
            except TypeError as error:
                _log.info("%s is made as it is, and does not know whose child it is: %s", plain.__qualname__, error)
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
            raise refused(name, cluster, error) from error


def _plain_function(fn: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function itself, and the options that Ray's decorator gave it."""
    plain = getattr(fn, "function", fn) if hasattr(fn, "submit_options") else fn
    theirs: dict[str, Any] = {}
    if isinstance(plain, runtime_context.connected_ray().remote_function.RemoteFunction):
        plain, theirs = (
            plain._function,
            {key: value for key, value in plain._default_options.items() if value is not None},
        )
    if not callable(plain):
        raise ConfigurationError(
            f"submit_task was given {fn!r} ({type(fn).__name__}), which is not a function.",
            next_step="pass the function itself: submit_task(f, args=(1, 2)), not submit_task(f(1, 2))",
        )
    shown = getattr(plain, "__qualname__", type(plain).__qualname__)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(
            f"{shown} is a generator; a handle has one value.",
            next_step="return a list, or submit one task per piece",
        )
    if inspect.iscoroutinefunction(plain):
        raise ConfigurationError(
            f"{shown} is an async function; a Ray task is a plain one.",
            next_step="wrap it: def run(): return asyncio.run(f())",
        )
    return plain, theirs


def _plain_class(cls: Any) -> tuple[type, dict[str, Any]]:
    plain = getattr(cls, "cls", cls) if hasattr(cls, "submit_options") else cls
    theirs: dict[str, Any] = {}
    if isinstance(plain, runtime_context.connected_ray().actor.ActorClass):
        theirs = {key: value for key, value in plain._default_options.items() if value is not None}
        plain = plain.__ray_metadata__.modified_class.__ray_actor_class__
    if not isinstance(plain, type):
        raise ConfigurationError(
            f"submit_actor was given {cls!r} ({type(cls).__name__}), which is not a class.",
            next_step="pass the class itself: submit_actor(Counter, args=(1,))",
        )
    return plain, theirs


def _as_function(plain: Callable[..., Any]) -> Callable[..., Any]:
    """What Ray takes for a function, which a built-in, a partial or a class is not."""
    if not in_environment():
        return function_of_child(plain)
    if isinstance(plain, FunctionType):
        return plain

    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return call


def refused(name: str, cluster: str, error: Exception) -> TaskSubmissionError:
    """Ray did not take it."""
    return TaskSubmissionError(
        f"Ray refused {name} on cluster {cluster!r}: {type(error).__name__}: {error}.",
        cluster=cluster,
        next_step="correct what it complains about; open files, locks and connections cannot be passed",
    )

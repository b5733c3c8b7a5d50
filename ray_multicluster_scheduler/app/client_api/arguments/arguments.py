"""Prepares the arguments of a task, an actor or a method call: pickles them, with placeholders instead of handles, and
finds the modules and values that they need."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.app.client_api.modules.user_modules import with_users_modules
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, TaskSubmissionError
from ray_multicluster_scheduler.common.object_argument import ObjectArgument, WithReferences
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments, ValueSource
from ray_multicluster_scheduler.control_plane.runtime.item import Item


def source_names(arguments: Arguments) -> list[str]:
    """Return a name for each value that is not in ``data``: the digest of an object from ``put``, else the item id."""
    return [one.digest if isinstance(one, ObjectHandle) else one._item.id for one in arguments.sources]


def runtime_env_for(arguments: Arguments, given: Mapping[str, Any], modules: Iterable[str] = ()) -> dict[str, Any]:
    """Add the user's modules that the values need, and ``modules``, to the caller's runtime_env. The modules that the
    result of another task needs are not known yet, so that task's own modules are added."""
    needed = {*arguments.modules, *modules}
    env = with_users_modules(given, needed) if needed else dict(given)
    if not arguments.sources or ("py_modules" in given and not given["py_modules"]):
        return env
    present = env.get("py_modules", [])
    more = [place for source in arguments.sources for place in _py_modules(source) if place not in present]
    return {**env, "py_modules": [*present, *dict.fromkeys(more)]} if more else env


def prepare_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, captured: tuple[Any, ...] = (), *, num_returns: int = 1
) -> Arguments:
    """Replace handles by placeholders and pickle the rest. ``captured``: handles that the code refers to;
    ``num_returns``: passed to an actor's method. Raises TaskSubmissionError for a value that cannot be pickled."""
    sources: list[Any] = []
    if any(isinstance(value, Handle) for value in args) or any(isinstance(value, Handle) for value in kwargs.values()):
        places: dict[str, int] = {}

        def place(value: Any) -> Any:
            if not isinstance(value, Handle):
                return value
            index = places.setdefault(value._item.id, len(sources))
            if index == len(sources):
                sources.append(value)
            return ObjectArgument(index, value.part)

        args = tuple(place(value) for value in args)
        kwargs = {key: place(value) for key, value in kwargs.items()}
    data, modules, inner = _pickled_arguments(args, kwargs, name, () if num_returns == 1 else (num_returns,))
    if not (sources or captured or inner):
        return Arguments(data, modules)
    sources, actors, has_references = _with_inner(sources, [*captured, *inner])
    for source in sources:
        if not source.done():
            source._check_process()
        if isinstance(source, ObjectHandle):
            modules = modules | source.modules
    if has_references:
        data = pickle.dumps(WithReferences(tuple(one._item.id for one in sources), data))
    return Arguments(data, modules, tuple(sources), tuple(actors))


def _with_inner(sources: Sequence[Handle], inner: Sequence[Any]) -> tuple[list[Handle], list[Any], bool]:
    """The sources, followed by those among the handles ``inner`` and inside of put values; and the actors among these.
    Each once. The last says whether there are references to sources."""
    objects: dict[str, Handle] = {}
    actors: dict[str, Any] = {}
    pending = [*sources, *inner]
    for one in pending:  # grows during the loop
        if not isinstance(one, Handle):
            actors.setdefault(one._item.id, one)
        elif objects.setdefault(one._item.id, one) is one and isinstance(one, ObjectHandle):
            pending += [handle for handle in one.handles if handle not in pending]
    return (
        list(objects.values()),
        list(actors.values()),
        any(isinstance(one, Handle) for one in pending[len(sources) :]),
    )


def check_arguments(args: object, kwargs: object, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Check that these are a sequence and a mapping. Raises ConfigurationError."""
    if type(args) is tuple and type(kwargs) is dict:
        return args, kwargs
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ConfigurationError(
            f"args of {name} is {type(args).__name__}, not a tuple or list.",
            next_step="write args=(x,) for one argument",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigurationError(
            f"kwargs of {name} is {type(kwargs).__name__}, not a mapping.", next_step='write kwargs={"x": 1}'
        )
    return tuple(args), dict(kwargs or {})


def pickled(value: object, what: str) -> tuple[bytes, set[str], tuple[Any, ...]]:
    """Pickle a value; returns also its modules and the handles in it. Raises TaskSubmissionError."""
    handles: list[Any] = []
    try:
        data, modules = pickling.dumps_with_modules(value, handles)
    except SchedulerError:
        raise
    except Exception as error:
        raise TaskSubmissionError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}.",
            next_step="open files, locks and connections inside the function instead of passing or capturing them",
        ) from error
    return data, modules, tuple(handles)


def unique_actors(actors: Sequence[Any]) -> tuple[Any, ...]:
    """Remove further handles of the same actor."""
    return tuple({actor._item.id: actor for actor in actors}.values()) if len(actors) > 1 else tuple(actors)


def _pickled_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, more: tuple[int, ...]
) -> tuple[bytes, set[str], tuple[Any, ...]]:
    handles: list[Any] = []
    try:
        data, modules = pickling.dumps_with_modules((args, kwargs, *more), handles)
    except Exception:  # noqa: BLE001 - raised again below, with the name of the argument
        # Find the argument at fault; if each can be pickled separately, name all of them.
        for place, value in [*enumerate(args), *kwargs.items()]:
            pickled(value, f"argument {place!r} of {name}, a {type(value).__qualname__},")
        return pickled((args, kwargs), f"the arguments of {name}, taken together,")
    return data, modules, tuple(handles)


def _py_modules(source: ValueSource) -> list[str]:
    item = source._item
    return list(item.task.runtime_env.get("py_modules", ())) if isinstance(item, Item) else []

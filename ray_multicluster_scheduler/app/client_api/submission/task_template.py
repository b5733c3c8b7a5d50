"""TaskTemplate: the validated options and the pickled function of a task, from which Submission builds each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_multicluster_scheduler.app.client_api.arguments.arguments import pickled
from ray_multicluster_scheduler.app.client_api.modules.function_pickle_cache import FunctionPickleCache
from ray_multicluster_scheduler.app.client_api.options import common_fields, joins_equal_item
from ray_multicluster_scheduler.app.client_api.ray_shape.dynamic_returns import DynamicReturns
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_arguments import check_function
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction, as_remote_function
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import mentions_cpu, parse_resources
from ray_multicluster_scheduler.common.several_returns import DYNAMIC, STREAMING, SeveralReturns, check_num_returns
from ray_multicluster_scheduler.control_plane.config import Settings

_EVERYWHERE = frozenset({"builtins", "cloudpickle", "ray_multicluster_scheduler"})
"""Modules that every pickled function needs and that every cluster has."""


@dataclass(frozen=True, slots=True)
class PickledFunction:
    """A pickled function, the modules that it needs, and the handles that it captured."""

    data: bytes
    digest: str
    modules: frozenset[str]
    handles: tuple[Any, ...]


_pickle_cache: FunctionPickleCache[PickledFunction] = FunctionPickleCache()


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """``fields``: those of the TaskDescription that are the same for every call. ``start_after``: as given, since
    seconds count from each call. ``joined``: a call equal to an unfinished one is answered with that one."""

    name: str
    function: PickledFunction
    fields: Mapping[str, Any]
    preferred_cluster: str | None
    runtime_env: Mapping[str, Any]
    num_returns: int
    start_after: Any = None
    joined: bool = False


def make_template(
    fn: Callable[..., Any],
    resource_requirements: Mapping[str, Any] | None,
    tags: Sequence[str] | None,
    num_returns: int | str | None,
    options: Mapping[str, Any],
    settings: Settings,
) -> TaskTemplate:
    """Raises ConfigurationError for a wrong option, TaskSubmissionError for a function that cannot be pickled."""
    fn = as_remote_function(fn)
    if isinstance(fn, RemoteFunction):
        own = dict(fn.submit_options)
        needs, labels, number = (own.pop(key, None) for key in ("resource_requirements", "tags", "num_returns"))
        resource_requirements = resource_requirements if resource_requirements is not None else needs
        tags = tags if tags is not None else labels
        num_returns = num_returns if num_returns is not None else number
        options = {**own, **options}
    plain = fn.function if isinstance(fn, RemoteFunction) else fn
    number = check_num_returns(num_returns, plain)
    name = check_function(plain, options.get("name"), generators=number != 1)
    fields = common_fields(options, "task", settings, tags)
    amounts = parse_resources(resource_requirements)
    if not mentions_cpu(resource_requirements):
        amounts = {"CPU": 1.0, **amounts}
    preferred, runtime_env = options.get("preferred_cluster"), fields.pop("runtime_env")
    del fields["preferred_cluster"]  # may differ for each call
    fields |= {"kind": "task", "name": name, "requirements": amounts}
    function, joined = _pickled_function(fn, name, number), joins_equal_item(options, settings)
    if number == STREAMING:
        fields["streams"], joined = True, False
        check_can_stream(name, fields)
    return TaskTemplate(
        name, function, fields, preferred, runtime_env, number, options.get("start_after"), joined=joined
    )


def check_can_stream(name: str, fields: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for options that give a generator several readers, or keep its value elsewhere."""
    for key in ("idempotency_key", "keep"):
        if fields.get(key) is not None:
            raise ConfigurationError(
                f"{name} is a generator, whose values are read once: it was given {key}={fields[key]!r}.",
                next_step=f'leave {key} out, or use num_returns="dynamic"',
            )


def _pickled_function(fn: Callable[..., Any], name: str, number: int) -> PickledFunction:
    """Pickle a RemoteFunction once, as Ray does; other functions unless the cached pickle is valid."""
    if not isinstance(fn, RemoteFunction):
        if number != 1:
            return _pickle_now(fn, name, number)
        return _pickle_cache.get(fn, lambda: _pickle_now(fn, name, number))
    known = fn.pickled.get(number)
    if known is None:
        known = fn.pickled[number] = _pickle_now(fn.shipped, name, number)
    return known


def _pickle_now(shipped: Callable[..., Any], name: str, number: int) -> PickledFunction:
    if number == DYNAMIC:
        shipped = DynamicReturns(shipped)
    elif number not in (1, STREAMING):
        shipped = SeveralReturns(shipped, number)
    data, modules, handles = pickled(shipped, f"the function {name}")
    needed = (module for module in modules if module.partition(".")[0] not in _EVERYWHERE)
    return PickledFunction(data, digest_of(data), frozenset(needed), handles)

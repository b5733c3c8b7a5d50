"""Translates the options of ``@remote`` and ``.options()``, Ray's and ours, to options of the submit verbs.

Standard library only: decorated functions of users' modules are also loaded inside clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api.options import option_names, refuse_unknown
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.several_returns import check_num_returns

RAY_TASK_RETRIES = 3
"""Ray's default for ``max_retries``."""
UNLIMITED = 1_000_000_000
"""Stands for Ray's -1."""

_AMOUNTS = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
_DEFAULT_ONLY: Mapping[str, tuple[tuple[object, ...], str]] = {
    "accelerator_type": ((None,), "use require_tags to choose clusters that have it"),
    "label_selector": ((None, {}), "use tags or require_tags to choose clusters; Ray chooses the node"),
    "fallback_strategy": ((None, []), "use tags, which prefer clusters and fall back to others"),
    "scheduling_strategy": (
        (None, "DEFAULT"),
        "use tags, preferred_cluster or allow_clusters to choose where it may run",
    ),
    "placement_group": ((None, "default"), "leave it out; resources are matched with single nodes"),
    "placement_group_bundle_index": ((None, -1), "leave it out"),
    "placement_group_capture_child_tasks": ((None, False), "leave it out"),
    "max_calls": ((None, 0), "leave it out; workers are Ray's to keep or to end"),
    "object_store_memory": ((None,), "leave it out"),
    "enable_task_events": ((None, True), "leave it out"),
    "_metadata": ((None, {}), "leave it out"),
    "_labels": ((None, {}), "use tags"),
    "_generator_backpressure_num_objects": ((None, -1), "leave it out; a generator is always held back"),
    "_num_objects_per_yield": ((None, 1), "leave it out"),
}
_OF_TASKS = frozenset({"num_returns", "resources", *_AMOUNTS})
_RETRIES = frozenset({"max_retries", "retry_exceptions"})


def task_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords for ``submit_task_async``. Raises ConfigurationError."""
    refuse_unknown(given, option_names("task") | _OF_TASKS | _RETRIES | _DEFAULT_ONLY.keys())
    options = without_defaults(given)
    check_num_returns(options.get("num_returns"))
    ours = {**with_amounts(options), **_retries(options)}
    return {key: value for key, value in ours.items() if key not in _RETRIES}


def without_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Remove options that do not apply to several clusters. Raises ConfigurationError unless they are defaults."""
    for key, (harmless, next_step) in _DEFAULT_ONLY.items():
        if key in given and not any(given[key] == value for value in harmless):
            raise ConfigurationError(f"{key}={given[key]!r} has no meaning for several clusters.", next_step=next_step)
    return {key: value for key, value in given.items() if key not in _DEFAULT_ONLY}


def with_amounts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``num_cpus``, ``num_gpus``, ``memory`` and ``resources`` to ``resource_requirements``."""
    rest = {key: value for key, value in options.items() if key not in _AMOUNTS and key != "resources"}
    custom = options.get("resources")
    if custom is not None and not isinstance(custom, Mapping):
        raise ConfigurationError(f"resources is {custom!r}.", next_step='give a mapping such as {"special": 1}')
    amounts = {name: options[key] for key, name in _AMOUNTS.items() if options.get(key) is not None}
    amounts = {**(options.get("resource_requirements") or {}), **(custom or {}), **amounts}
    return {**rest, "resource_requirements": amounts} if amounts else rest


def _retries(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Ray's limit for crashes (also lost nodes) and, with ``retry_exceptions``, for exceptions."""
    most, exceptions = options.get("max_retries"), options.get("retry_exceptions")
    ours: dict[str, Any] = {}
    if most is not None:
        if isinstance(most, bool) or not isinstance(most, int) or most < -1:
            raise ConfigurationError(f"max_retries is {most!r}.", next_step="give 0 or more, or -1 for no limit")
        most = UNLIMITED if most == -1 else most
        ours = {"crash_retries": most, "lost_retries": most}
    if isinstance(exceptions, (list, tuple)):
        ours |= {"retries": RAY_TASK_RETRIES if most is None else most, "retry_on": list(exceptions)}
    elif exceptions is True:
        ours["retries"] = RAY_TASK_RETRIES if most is None else most
    elif exceptions not in (None, False):
        raise ConfigurationError(
            f"retry_exceptions is {exceptions!r}.", next_step="give True, False or a list of exception classes"
        )
    # Our own options take precedence.
    return {key: value for key, value in ours.items() if options.get(key) is None}

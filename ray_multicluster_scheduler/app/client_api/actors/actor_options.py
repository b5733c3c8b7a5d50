"""Translates the options of ``@remote`` classes, Ray's and ours, to options of ``submit_actor``.

Light to import: decorated classes of users' modules are also loaded inside clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api.options import option_names, refuse_unknown
from ray_multicluster_scheduler.app.client_api.ray_shape.ray_options import with_amounts, without_defaults
from ray_multicluster_scheduler.common.exception import ConfigurationError

_CONSTRUCTOR = "an error of the constructor is raised at once; catch it and submit again"
_NAMED = "give it a name, with get_if_exists=True"
_RESTARTS = "use max_restarts, the number of restarts after it died"
NOT_FOR_ACTORS = {
    "retries": _CONSTRUCTOR,
    "retry_on": _CONSTRUCTOR,
    "no_retry_on": _CONSTRUCTOR,
    "run_timeout": "an actor runs until it is killed; use ready_timeout for its constructor",
    "idempotency_key": _NAMED,
    "max_retries": _RESTARTS,
    "retry_exceptions": _CONSTRUCTOR,
    "num_returns": "set it on the method, @method(num_returns=2), or on the call, actor.f.options(num_returns=2)",
}
_RAY_AMOUNTS = frozenset({"resources", "num_cpus", "num_gpus", "memory"})
_RAY_DEFAULT_ONLY: Mapping[str, tuple[tuple[object, ...], str]] = {
    "max_task_retries": ((None, 0), "leave it out: a call that an actor may have begun is never repeated"),
    "namespace": ((None,), "leave it out: names are those of this program's scheduler"),
    "max_pending_calls": ((None, -1), "leave it out: calls wait in the program, without a limit"),
    "concurrency_groups": ((None, {}), "use max_concurrency"),
    "allow_out_of_order_execution": ((None, False), "leave it out: calls are run in the order they were made"),
}


def actor_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords for ``submit_actor_async``. Raises ConfigurationError."""
    rest = dict(given)
    for key, (harmless, next_step) in _RAY_DEFAULT_ONLY.items():
        if key in rest and not any(rest[key] == value for value in harmless):
            raise ConfigurationError(f"{key}={rest[key]!r} is not supported for actors.", next_step=next_step)
        rest.pop(key, None)
    rest = without_defaults(rest)
    if rest.get("lifetime") == "non_detached":
        del rest["lifetime"]  # Ray's name of the default
    rest = without_task_options(rest)
    refuse_unknown(rest, option_names("actor") | _RAY_AMOUNTS)
    return with_amounts(rest)


def without_task_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Remove options that do not apply to actors. Raises ConfigurationError, with the one to use, if they are set."""
    for key, instead in NOT_FOR_ACTORS.items():
        if options.get(key) is not None:
            raise ConfigurationError(f"{key} does not apply to actors.", next_step=instead)
    if options.get("dedup") == "content":
        raise ConfigurationError(
            'dedup="content" does not apply to actors: equal actors are not joined.', next_step=_NAMED
        )
    return {key: value for key, value in options.items() if key not in NOT_FOR_ACTORS}

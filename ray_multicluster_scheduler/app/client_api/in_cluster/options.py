"""Translates submit options to options of Ray, for code inside a cluster. Options that Ray lacks are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray_multicluster_scheduler.app.client_api.options import check_dedup, option_names, refuse_unknown
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model.resources import mentions_cpu, parse_resources

_log = get_logger(__name__)

_UNSUPPORTED = {
    "require_tags": "the tags of clusters are unknown inside a cluster; submit from outside to choose one",
    "queue_timeout": "Ray queues it itself; use get(handle, timeout=…) and cancel",
    "run_timeout": "use get(handle, timeout=…) and cancel",
    "idempotency_key": "Ray has no keys of tasks; keep the handle",
    "no_retry_on": "list the exceptions to retry in retry_on",
    "restart_elsewhere": "items of a cluster stay there",
    "after": "give the handles as arguments, or wait for them, and then submit it",
    "start_after": "Ray starts it as soon as it can; wait, and then submit it",
}
_UNSUPPORTED_FOR_ACTORS = {
    **_UNSUPPORTED,
    "retries": "use max_restarts, and repeat the call",
    "crash_retries": "use max_restarts",
    "retry_on": "use max_restarts, and repeat the call",
}
_ACTOR_OPTIONS = frozenset({"max_restarts", "lifetime", "ready_timeout", "max_concurrency", "get_if_exists"})


def check_place(options: Mapping[str, Any], cluster: str) -> None:
    """Refuse a request for another cluster. Raises ConfigurationError."""
    preferred = options.get("preferred_cluster") or ClusterContextManager.get()
    allowed, denied = options.get("allow_clusters"), options.get("deny_clusters") or ()
    wrong = None
    if preferred not in (None, cluster):
        wrong = f"cluster {preferred!r} was requested"
    elif allowed is not None and cluster not in allowed:
        wrong = f"allow_clusters is {list(allowed)!r}"
    elif cluster in denied:
        wrong = f"deny_clusters is {list(denied)!r}"
    if wrong:
        raise ConfigurationError(
            f"This code runs inside cluster {cluster!r}, and its items run there, too, but {wrong}.",
            cluster=cluster,
            next_step=f"leave it out or name {cluster!r}; to use another cluster, submit from outside",
        )


def refuse(options: Mapping[str, Any], kind: str, cluster: str, refused: Mapping[str, str]) -> None:
    """Refuse options that are unknown or do not work inside a cluster. Raises ConfigurationError."""
    check_dedup(options.get("dedup"))
    if options.get("dedup") == "content":
        raise ConfigurationError(
            f"Equal items are not joined inside cluster {cluster!r}: Ray runs each.",
            cluster=cluster,
            next_step="keep the handle of the first one",
        )
    for key, value in options.items():
        if value and key in refused:
            raise ConfigurationError(
                f"{key} cannot be used inside cluster {cluster!r}.", cluster=cluster, next_step=refused[key]
            )
    refuse_unknown(options, option_names(kind) | refused.keys() | {"num_returns"})
    for key in ("priority", "pool"):
        if options.get(key):
            _log.debug("%s %s has no effect inside cluster %s: Ray has none", key, options[key], cluster)


def task_options(
    requirements: Mapping[str, Any] | None, options: Mapping[str, Any], cluster: str, *, default_cpu: bool = True
) -> dict[str, Any]:
    """Options of ``ray.remote`` for a function. Raises ConfigurationError."""
    refuse(options, "task", cluster, _UNSUPPORTED)
    needs = task_needs(requirements) if default_cpu else requested(requirements)
    chosen = {**ray_resources(needs), **_retries(options)}
    chosen |= {key: options[key] for key in ("name", "num_returns") if options.get(key) is not None}
    return chosen


def task_needs(requirements: Mapping[str, Any] | None) -> dict[str, float]:
    """The resources of a task: 1 CPU by default."""
    return {"CPU": 1.0, **requested(requirements)}


def actor_options(requirements: Mapping[str, Any] | None, options: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Options of ``ray.remote`` for a class, which by default needs 1 CPU to start, then none. Raises
    ConfigurationError."""
    refuse(options, "actor", cluster, _UNSUPPORTED_FOR_ACTORS)
    chosen = ray_resources(requested(requirements))
    passed = _ACTOR_OPTIONS - {"ready_timeout"} | {"name"}
    chosen |= {key: options[key] for key in sorted(passed) if options.get(key) is not None}
    if chosen.get("lifetime") == "detached" and not chosen.get("name"):
        raise ConfigurationError("A detached actor needs a name, to be found again.", next_step="give it a name")
    return chosen


def requested(requirements: Mapping[str, Any] | None) -> dict[str, float]:
    """The requested amounts; an explicit CPU of 0 is kept, since it differs from the default."""
    amounts = parse_resources(requirements)
    return {**({"CPU": 0.0} if mentions_cpu(requirements) else {}), **amounts}


def ray_resources(amounts: Mapping[str, float], prefix: str = "") -> dict[str, Any]:
    """Convert amounts to Ray's keywords, which for the entrypoint of a job have a prefix."""
    names = {"CPU": f"{prefix}num_cpus", "GPU": f"{prefix}num_gpus", "memory": f"{prefix}memory"}
    chosen: dict[str, Any] = {names[name]: amount for name, amount in amounts.items() if name in names}
    custom = {name: amount for name, amount in amounts.items() if name not in names}
    return {**chosen, f"{prefix}resources": custom} if custom else chosen


def _retries(options: Mapping[str, Any]) -> dict[str, Any]:
    """Ray has one limit for exceptions and crashes; we have two."""
    retries, crashes, only = options.get("retries"), options.get("crash_retries"), options.get("retry_on")
    for key, value in (("retries", retries), ("crash_retries", crashes)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ConfigurationError(f"{key} is {value!r}.", next_step="give a whole number, 0 or more")
    if retries and crashes is not None and retries != crashes:
        raise ConfigurationError(
            f"retries is {retries} and crash_retries is {crashes}; inside a cluster Ray counts both together.",
            next_step="give one of them, or the same number for both",
        )
    if retries:
        return {"max_retries": retries, "retry_exceptions": _classes(only) if only is not None else True}
    return {} if crashes is None else {"max_retries": crashes}


def _classes(only: object) -> list[type[BaseException]]:
    some: Sequence[object] = list(only) if isinstance(only, (list, tuple, set, frozenset)) else [only]
    classes = [one for one in some if isinstance(one, type) and issubclass(one, BaseException)]
    if len(classes) != len(some):
        raise ConfigurationError(
            f"retry_on is {only!r}; inside a cluster Ray requires the classes.",
            next_step="give exception classes, not their names",
        )
    return classes

"""What can be said about an item beside what it is; checked before anything is sent.

Light to import: a decorated function that is loaded inside a cluster knows the names of the options, too.
"""

from __future__ import annotations

import difflib
import functools
import getpass
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskSubmissionError
from ray_multicluster_scheduler.common.model.checks import priority_of, whole

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.config import Settings

_LONGEST_S = 100 * 365 * 86400.0
_FIRST_EPOCH = 1e9
"""A ``start_after`` from here on is a moment (2001 or later), below it is a number of seconds from now."""
_MEANT = {"cluster": "preferred_cluster", "cluster_name": "preferred_cluster", "clusters": "allow_clusters"}
"""What people write, and what it is called: not always the most similar name."""
_AMOUNTS = {
    **dict.fromkeys(("num_cpus", "num_cpu", "cpus", "cpu", "entrypoint_num_cpus"), '{"CPU": 2}'),
    **dict.fromkeys(("num_gpus", "num_gpu", "gpus", "gpu", "entrypoint_num_gpus"), '{"GPU": 1}'),
    **dict.fromkeys(("memory", "mem", "entrypoint_memory"), '{"memory": "1GiB"}'),
    "resources": '{"CPU": 2, "tpu": 1}',
}
"""What other verbs, Ray's own and the command line call what is an amount here."""
_BESIDE = frozenset({"tags", "resource_requirements"})
"""Arguments of the verbs that are no options of theirs, but may be meant."""


class ItemOptions(TypedDict, total=False):
    """Keyword arguments that tasks, actors and jobs have in common.

    ``after``: ids or handles of items that have to succeed first; one that fails, fails this one. ``start_after``:
    seconds from now, or a moment (a datetime, or seconds since the epoch), before which it is not queued.
    ``dedup="content"``: while an equal one (function, arguments, requirements, wishes) is not over, this is that one.
    """

    name: str | None
    require_tags: Sequence[str] | None
    preferred_cluster: str | None
    fallback: str
    allow_clusters: Sequence[str] | None
    deny_clusters: Sequence[str] | None
    priority: int
    owner: str | None
    retries: int | None
    crash_retries: int | None
    lost_retries: int | None
    retry_on: Sequence[str | type[BaseException]] | None
    no_retry_on: Sequence[str | type[BaseException]] | None
    run_timeout: float | None
    queue_timeout: float | None
    idempotency_key: str | None
    dedup: str | None
    after: Sequence[Any] | None
    start_after: float | datetime | timedelta | None
    runtime_env: Mapping[str, Any] | None


class TaskOptions(ItemOptions, total=False):
    """What only tasks have.

    ``keep="cluster"``: a value of more than 1 MiB stays where it was made, and is fetched each time that it is asked
    for. It is lost with its cluster or its agent, and then asking for it raises ResultLostError.
    """

    keep: str | None


class JobOptions(ItemOptions, total=False):
    """What only jobs have.

    ``resource_requirements`` is the footprint of the whole job, used for placement; ``entrypoint_resources`` is what
    Ray holds for the entrypoint process (default: nothing), on one node and as a part of the footprint. ``retry_lost``
    allows a second run of a job whose cluster was lost with it.
    """

    submission_id: str | None
    metadata: Mapping[str, str] | None
    resource_requirements: Mapping[str, Any] | None
    entrypoint_resources: Mapping[str, Any] | None
    tags: Sequence[str] | None
    retry_lost: bool


class LimitOptions(TypedDict, total=False):
    """What an owner may have. ``weight`` is its share at equal priority; of the others, None is no limit."""

    weight: float
    max_queued: int | None
    max_running: int | None
    max_gpus: float | None
    max_priority: int | None


def common_fields(options: Mapping[str, Any], known: type, settings: Settings, tags: object) -> dict[str, Any]:
    """Fields of the TaskDescription that all verbs fill alike. Raises ConfigurationError."""
    refuse_unknown(options, names_of(known))
    check_dedup(options.get("dedup"))
    begins_at(options.get("start_after"), 0.0)
    _text(options.get("name"), "name")
    given = {key: value for key, value in options.items() if value is not None}
    return {
        "tags": _texts(tags, "tags"),
        "require_tags": _texts(given.get("require_tags"), "require_tags"),
        "preferred_cluster": _text(given.get("preferred_cluster"), "preferred_cluster") or ClusterContextManager.get(),
        "fallback": given.get("fallback", "any"),
        "allow_clusters": _texts(given["allow_clusters"], "allow_clusters") if "allow_clusters" in given else None,
        "deny_clusters": _texts(given.get("deny_clusters"), "deny_clusters"),
        "priority": priority_of(given.get("priority", 0)),
        "owner": _text(given.get("owner"), "owner") or default_owner(),
        "retries": whole(given.get("retries", settings.retries), "retries"),
        "crash_retries": whole(given.get("crash_retries", settings.crash_retries), "crash_retries"),
        "lost_retries": whole(given.get("lost_retries", settings.lost_retries), "lost_retries"),
        "retry_on": _class_names(given["retry_on"], "retry_on") if "retry_on" in given else None,
        "no_retry_on": _class_names(given.get("no_retry_on", ()), "no_retry_on"),
        "retry_lost": bool(given.get("retry_lost", False)),
        "run_timeout": _seconds(given.get("run_timeout"), "run_timeout"),
        "queue_timeout": _seconds(given.get("queue_timeout"), "queue_timeout"),
        "idempotency_key": _text(given.get("idempotency_key"), "idempotency_key"),
        "after": _ids(given.get("after")),
        "runtime_env": absolute_paths(given.get("runtime_env") or {}),
    }


def begins_at(given: object, now: float) -> float | None:
    """The moment that ``start_after`` means, by a clock that shows ``now``. Raises ConfigurationError."""
    if given is None:
        return None
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, datetime):
        return now + given.timestamp() - time.time()  # one without a zone is local time
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < time.time() + _LONGEST_S:
        raise ConfigurationError(
            f"start_after is {given!r}.", next_step="give seconds from now, a datetime, or seconds since the epoch"
        )
    return now + given - time.time() if given >= _FIRST_EPOCH else now + given


def is_joined(options: Mapping[str, Any], settings: Settings) -> bool:
    """Shall it be joined to an equal item? One with an id or key of its own is told apart by that.

    Raises ConfigurationError when both are asked for.
    """
    own = next((key for key in ("submission_id", "idempotency_key") if options.get(key) is not None), None)
    if own is not None and options.get("dedup") == "content":
        raise ConfigurationError(
            f'dedup="content" and {own} exclude each other: equal items are one, or each has its own.',
            next_step="give one of the two",
        )
    return own is None and (options.get("dedup") or settings.dedup) == "content"


def absolute_paths(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Relative folders in a caller's runtime_env are relative to where the program runs now."""
    if not isinstance(runtime_env, Mapping):
        raise ConfigurationError(
            f"runtime_env is {type(runtime_env).__name__}, not a mapping.",
            next_step='give for example {"pip": ["numpy"]} or {"working_dir": "."}',
        )
    # Heavy, and not needed before something is submitted.
    from ray_multicluster_scheduler.control_plane.config.environment_spec import normalise_runtime_env  # noqa: PLC0415

    try:
        env = normalise_runtime_env({key: _as_text(value) for key, value in runtime_env.items()})
    except ValueError as error:
        raise ConfigurationError(f"The runtime_env {error}", next_step="correct it and submit again") from None
    if isinstance(env.get("working_dir"), (str, Path)):
        env["working_dir"] = _absolute(env["working_dir"])
    if isinstance(env.get("py_modules"), (list, tuple)):
        env["py_modules"] = [_absolute(module) for module in env["py_modules"]]
    return env


def _absolute(path: object) -> object:
    if not isinstance(path, str) or "://" in path:
        return path
    full = os.path.abspath(Path(path).expanduser())
    if not os.path.exists(full):
        raise TaskSubmissionError(
            f"The runtime_env names {path!r}, which is not there (looked for {full}).",
            next_step="correct the path; a relative one starts where the program runs",
        )
    return full


def _as_text(value: object) -> object:
    """A Path is as good as its text, alone or in a list."""
    if isinstance(value, (list, tuple)):
        return [_as_text(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def names_of(known: type) -> frozenset[str]:
    """The options that a TypedDict of these names, and those of ItemOptions."""
    return frozenset({*known.__annotations__, *ItemOptions.__annotations__})


def refuse_unknown(options: Mapping[str, Any], names: frozenset[str]) -> None:
    """Raises ConfigurationError with the name that was probably meant."""
    for key in options:
        if key in _AMOUNTS and not names & _AMOUNTS.keys():
            hint = f"amounts are named together: resource_requirements={_AMOUNTS[key]}"
            raise ConfigurationError(f"There is no option {key!r}.", next_step=hint)
        if key not in names:
            near = difflib.get_close_matches(key, (names | _BESIDE) - {key}, 1)
            close = [_MEANT[key]] if _MEANT.get(key) in names else near
            known = ", ".join(sorted((names | _BESIDE) - {key}))
            hint = f"did you mean {close[0]}?" if close else f"known options: {known}"
            raise ConfigurationError(f"There is no option {key!r}.", next_step=hint)


def kept_where(given: object) -> str | None:
    """Where a large value is to stay; None: it comes to the control plane. Raises ConfigurationError."""
    if given not in (None, "cluster"):
        raise ConfigurationError(f"keep is {given!r}.", next_step='give "cluster", or leave it out')
    return None if given is None else "cluster"


def check_dedup(given: object) -> None:
    """Are equal items to be joined? Raises ConfigurationError for what is no answer."""
    if given not in (None, "none", "content"):
        raise ConfigurationError(f"dedup is {given!r}.", next_step='give "none" or "content", or leave it out')


def _texts(given: object, what: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{what} is {given!r}, not a list.", next_step=f'give for example {what}=["gpu"]')
    texts = tuple(given)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ConfigurationError(f"{what} holds {text!r}.", next_step="give names as text")
    return texts


def _ids(given: object) -> tuple[str, ...]:
    """The items that ``after`` names, each once."""
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"after is {given!r}, not a list.", next_step="give a list of ids or handles")
    return tuple(dict.fromkeys(item_id_of(one, "after") for one in given))


def item_id_of(given: object, what: str) -> str:
    """The id of an item, given by its id or by its handle. Raises ConfigurationError for anything else."""
    if isinstance(given, str) and given:
        return given
    # Heavy; whoever has a handle has loaded it.
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle  # noqa: PLC0415
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle  # noqa: PLC0415
    from ray_multicluster_scheduler.control_plane.runtime.item import Item  # noqa: PLC0415

    if isinstance(given, (Handle, ActorHandle)) and isinstance(given._item, Item):
        return given._item.whole
    raise ConfigurationError(
        f"{what} was given {given!r}, which is no item.",
        next_step="give what submit_task_async, submit_job or submit_actor returned, or its id",
    )


def _text(given: object, what: str) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or not given or not given.isprintable():
        raise ConfigurationError(f"{what} is {given!r}.", next_step=f"give {what} as plain text, or leave it out")
    return given


def _class_names(given: object, what: str) -> tuple[str, ...]:
    items = given if isinstance(given, (list, tuple, set, frozenset)) else (given,)
    return _texts([item.__name__ if isinstance(item, type) else item for item in items], what)


def _seconds(value: object, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LONGEST_S:
        raise ConfigurationError(f"{what} is {value!r}.", next_step="give seconds above 0, or None for no limit")
    return float(value)


@functools.cache
def default_owner() -> str:
    """Whose it is, where nobody says so."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())

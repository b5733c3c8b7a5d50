"""Validates the keyword options of the submit verbs and converts them to fields of descriptions.

The options, their kinds of items and defaults are defined in common/model; the TypedDicts repeat the names for type
checkers, and a test compares the two. Light to import, since decorated functions are also loaded inside clusters.
"""

from __future__ import annotations

import difflib
import functools
import getpass
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, get_origin

from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskDescription, item_fields, parse_resources
from ray_multicluster_scheduler.common.model.checks import valid_integer, valid_priority
from ray_multicluster_scheduler.common.model.item_fields import MAX_SECONDS, ItemField, Values, fields_of
from ray_multicluster_scheduler.common.model.submit_options import SubmitOptions, options_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.config import Settings

_FIRST_EPOCH = 1e9
"""A ``start_after`` of this or more is a time (2001 or later), below it seconds from now."""
_SYNONYMS = {"cluster": "preferred_cluster", "cluster_name": "preferred_cluster", "clusters": "allow_clusters"}
"""Wrong names whose option is not the most similar one."""
_AMOUNTS = {
    **dict.fromkeys(("num_cpus", "num_cpu", "cpus", "cpu", "entrypoint_num_cpus"), '{"CPU": 2}'),
    **dict.fromkeys(("num_gpus", "num_gpu", "gpus", "gpu", "entrypoint_num_gpus"), '{"GPU": 1}'),
    **dict.fromkeys(("memory", "mem", "entrypoint_memory"), '{"memory": "1GiB"}'),
    "resources": '{"CPU": 2, "tpu": 1}',
}
"""Names of resource amounts in Ray and on the command line, with an example for ``resource_requirements``."""


class ItemOptions(TypedDict, total=False):
    """Keyword arguments of all submit verbs; docs/reference/items.md explains each."""

    name: str | None
    require_tags: Sequence[str] | None
    preferred_cluster: str | None
    fallback: str
    allow_clusters: Sequence[str] | None
    deny_clusters: Sequence[str] | None
    priority: float
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
    labels: Mapping[str, str] | None
    pool: str | None
    preemptible: bool | None
    min_runtime_s: float | None


class TaskOptions(ItemOptions, total=False):
    """Keyword arguments of submit_task and submit_task_async."""

    keep: str | None


class JobOptions(ItemOptions, total=False):
    """Keyword arguments of submit_job."""

    submission_id: str | None
    metadata: Mapping[str, str] | None
    resource_requirements: Mapping[str, Any] | None
    entrypoint_resources: Mapping[str, Any] | None
    tags: Sequence[str] | None
    retry_lost: bool


class ActorOptions(ItemOptions, total=False):
    """Keyword arguments of submit_actor."""

    max_restarts: int
    restart_elsewhere: bool
    lifetime: str | None
    ready_timeout: float | None
    max_concurrency: int | None
    get_if_exists: bool


class GangOptions(ItemOptions, total=False):
    """Keyword arguments of submit_gang."""

    ready_timeout: float | None


class LimitOptions(TypedDict, total=False):
    """Keyword arguments of set_owner_limits. ``weight``: the share at equal priority; None: no limit."""

    weight: float
    max_queued: int | None
    max_running: int | None
    max_gpus: float | None
    max_priority: float | None


def common_fields(options: Mapping[str, Any], kind: str, settings: Settings, tags: object) -> dict[str, Any]:
    """Return the fields of the TaskDescription that are the same for all verbs. Raises ConfigurationError."""
    refuse_unknown(options, option_names(kind))
    check_dedup(options.get("dedup"))
    start_time(options.get("start_after"), 0.0)
    _text(options.get("name"), "name")
    made = fields_from(TaskDescription, {**options, "tags": tags}, settings)
    made["preferred_cluster"] = made["preferred_cluster"] or ClusterContextManager.get()
    made["owner"] = made["owner"] or default_owner()
    return made


def fields_from(description: type, options: Mapping[str, Any], settings: Settings | None = None) -> dict[str, Any]:
    """Return the fields of a description that options can set, from options or defaults. Raises ConfigurationError."""
    made: dict[str, Any] = {}
    for field in _set_by_options(description):
        name, value = field.name, options.get(field.name)
        if value is not None:
            made[name] = _read(field, value)
        elif field.nullable and name in options:
            made[name] = None
        elif field.spec.setting:
            made[name] = getattr(settings, name)
        else:
            made[name] = dict(field.default) if isinstance(field.default, dict) else field.default
    return made


@functools.cache
def _set_by_options(description: type) -> tuple[ItemField, ...]:
    """Return the fields that are read in the same way for all kinds of items."""
    own = {"name", "start_after"}  # the default name depends on the kind, start_after on the time of submission
    fields = fields_of(description).values()
    return tuple(one for one in fields if one.spec.options and not one.spec.keyword and one.name not in own)


def _read(field: ItemField, value: Any) -> Any:
    if field.values is not None:
        return _READERS[field.values](value, field.name)
    if get_origin(field.type) is Literal and value not in get_args(field.type):
        words = " or ".join(f'"{word}"' for word in get_args(field.type))
        raise ConfigurationError(f"{field.name} is {value!r}.", next_step=f"give {words}, or leave it out")
    return value


def start_time(given: object, now: float) -> float | None:
    """Convert ``start_after`` to a time of a clock that shows ``now``. Raises ConfigurationError."""
    if given is None:
        return None
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, datetime):
        return now + given.timestamp() - time.time()  # one without a zone is local time
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < time.time() + MAX_SECONDS:
        raise ConfigurationError(
            f"start_after is {given!r}.", next_step="give seconds from now, a datetime, or seconds since the epoch"
        )
    return now + given - time.time() if given >= _FIRST_EPOCH else now + given


def joins_equal_item(options: Mapping[str, Any], settings: Settings) -> bool:
    """Is it joined to an equal item? Raises ConfigurationError if it also has its own id or key."""
    own = next((key for key in ("submission_id", "idempotency_key") if options.get(key) is not None), None)
    if own is not None and options.get("dedup") == "content":
        raise ConfigurationError(
            f'dedup="content" and {own} exclude each other.',
            next_step="give one of the two",
        )
    return own is None and (options.get("dedup") or settings.dedup) == "content"


def absolute_paths(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve relative folders of a runtime_env against the working directory of the program."""
    if not isinstance(runtime_env, Mapping):
        raise ConfigurationError(
            f"runtime_env is {type(runtime_env).__name__}, not a mapping.",
            next_step='give for example {"pip": ["numpy"]} or {"working_dir": "."}',
        )
    # Heavy, and needed for submissions only.
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
            f"The runtime_env names {path!r}, which does not exist (searched {full}).",
            next_step="correct the path; a relative one starts where the program runs",
        )
    return full


def _as_text(value: object) -> object:
    """Convert a Path, alone or in a list, to text."""
    if isinstance(value, (list, tuple)):
        return [_as_text(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def option_names(kind: str) -> frozenset[str]:
    """Return the keywords of the submit verb of a kind."""
    return frozenset(options_of(kind))


def refuse_unknown(options: Mapping[str, Any], names: frozenset[str]) -> None:
    """Refuse unknown options. Raises ConfigurationError with the most similar name."""
    for key in options:
        if key in _AMOUNTS and not names & _AMOUNTS.keys():
            hint = f"use resource_requirements={_AMOUNTS[key]}"
            raise ConfigurationError(f"There is no option {key!r}.", next_step=hint)
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            close = [_SYNONYMS[key]] if _SYNONYMS.get(key) in names else near
            hint = f"did you mean {close[0]}?" if close else f"known options: {', '.join(sorted(names))}"
            raise ConfigurationError(f"There is no option {key!r}.", next_step=hint)


def check_dedup(given: object) -> None:
    """Raises ConfigurationError for an unknown value of dedup."""
    if given is not None:
        _read(fields_of(SubmitOptions)["dedup"], given)


def _texts(given: object, what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{what} is {given!r}, not a list.", next_step=f'give for example {what}=["gpu"]')
    texts = tuple(given)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ConfigurationError(f"{what} holds {text!r}.", next_step="give names as text")
    return texts


def _ids(given: object, what: str) -> tuple[str, ...]:
    """Return the ids of items that are given by id or handle, without repetitions."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{what} is {given!r}, not a list.", next_step="give a list of ids or handles")
    return tuple(dict.fromkeys(item_id_of(one, what) for one in given))


def item_id_of(given: object, what: str) -> str:
    """Return the id of an item that is given by id or handle. Raises ConfigurationError for anything else."""
    if isinstance(given, str) and given:
        return given
    # Heavy; already loaded if there is a handle.
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle  # noqa: PLC0415
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle  # noqa: PLC0415
    from ray_multicluster_scheduler.control_plane.runtime.item import Item  # noqa: PLC0415

    if isinstance(given, (Handle, ActorHandle)) and isinstance(given._item, Item):
        return given._item.scheduled_id
    raise ConfigurationError(
        f"{what} was given {given!r}, which is not an item.",
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


def _seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MAX_SECONDS:
        raise ConfigurationError(f"{what} is {value!r}.", next_step="give seconds above 0, or leave it out")
    return float(value)


@functools.cache
def default_owner() -> str:
    """Return the owner of items without an explicit one: the name of the current user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def _text_by_name(given: object, what: str) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{what} is {given!r}.", next_step='give a mapping such as {"team": "weather"}')
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigurationError(f"{what}[{key!r}] is {value!r}.", next_step="give keys and values as text")
    return dict(given)


def _labels(given: object, what: str) -> dict[str, str]:
    labels = _text_by_name(given, what)
    if not item_fields.are_labels(labels):
        raise ConfigurationError(
            f"{what} is {str(given)[:100]}.", next_step=f"give {what} as {item_fields.LABELS.words}"
        )
    return labels


_READERS: Mapping[Values, Callable[[Any, str], Any]] = {
    item_fields.TEXT: _text,
    item_fields.NAME: _text,
    item_fields.TEXTS: _texts,
    item_fields.CLASS_NAMES: _class_names,
    item_fields.ITEM_IDS: _ids,
    item_fields.TEXT_BY_NAME: _text_by_name,
    item_fields.LABELS: _labels,
    item_fields.FLAG: lambda value, _: bool(value),
    item_fields.COUNT: valid_integer,
    item_fields.CONCURRENCY: valid_integer,
    item_fields.RESTARTS: valid_integer,
    item_fields.PRIORITY: lambda value, _: valid_priority(value),
    item_fields.SECONDS: _seconds,
    item_fields.RESOURCES: lambda value, what: parse_resources(value, what=what),
    item_fields.RUNTIME_ENV: lambda value, _: absolute_paths(value or {}),
}
"""Validate and convert an option by the type of its field."""

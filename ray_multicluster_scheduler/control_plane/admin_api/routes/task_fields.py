"""An item as somebody sent it: every field is what the brain and the store take for granted, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.model.task_description import MOST_PRIORITY, RESERVED_IDS

_MOST = 2**53
_LONGEST_S = 100 * 365 * 86_400.0
_LATEST = 1e11
_PRIVATE = frozenset({"runtime_env", "job", "entrypoint", "metadata"})
"""What may have secrets in it: it is not said again."""
_DEEPEST = 32
KINDS = ("task", "actor", "job", "gang")
_HERE = frozenset({".", ".."})
_NO_IDS = _HERE | RESERVED_IDS


class _Field(NamedTuple):
    """``schema`` says the same as ``holds``, as far as JSON Schema can."""

    holds: Callable[[Any], bool]
    words: str
    schema: Mapping[str, Any]


def task_from(said: object) -> TaskDescription:
    """Raises ConfigurationError."""
    _check(said, _TASK, "A task", "kind", "name")
    assert isinstance(said, Mapping)
    parts = (("job", _JOB, "entrypoint"), ("actor", _ACTOR, "ray_name"), ("gang", _GANG, "members"))
    for name, fields, needed in parts:
        if said.get(name) is not None:
            _check(said[name], fields, name, needed)
    for member in (said.get("gang") or {}).get("members", ()):
        _check(member, _MEMBER, "A member", "name", "requirements", "function_digest", "arguments_digest")
    try:
        return TaskDescription.from_dict(said)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"The task cannot be read: {error}.", next_step="see docs/service.md") from error


def is_text(value: object) -> bool:
    """Text that can be written down and sent on."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: object) -> bool:
    """May an item be called so?"""
    return _ID.holds(value)


def check_fields(said: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Raises ConfigurationError for a field that means nothing."""
    for key in said:
        if key not in known:
            raise ConfigurationError(f"{what} has no field {key[:100]!r}.", next_step=f"use {', '.join(known)}")


def _check(said: object, fields: Mapping[str, _Field], what: str, *needed: str) -> None:
    if not isinstance(said, Mapping):
        raise ConfigurationError(f"{what} is {_shown(said)}.", next_step="send a JSON object")
    check_fields(said, fields, what)
    for key, value in said.items():
        field = fields[key]
        if not field.holds(value):
            shown = f"a {type(value).__name__}" if key in _PRIVATE else _shown(value)
            raise ConfigurationError(f"{key} is {shown}.", next_step=f"give {key} as {field.words}")
    for key in needed:
        if key not in said:
            raise ConfigurationError(f"{what} has no {key}.", next_step=f"give {key} as {fields[key].words}")


def _shown(value: object) -> str:
    """As it was sent."""
    return json.dumps(value, default=str)[:100]


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float  # no truth value, which is a number to Python


def _is_resources(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        is_text(name) and _is_number(amount) and 0 <= amount < _MOST**2 for name, amount in value.items()
    )


def _is_words(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(holds, value))


def _is_plain(value: object, deepest: int = _DEEPEST) -> bool:
    """A JSON object that is not so deep that whoever walks through it later falls over."""
    if not value:
        return isinstance(value, Mapping)
    level: list[object] = [value]
    for _ in range(deepest):
        level = [
            below
            for one in level
            if isinstance(one, (dict, list))
            for below in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return isinstance(value, Mapping)
    return False


def _is_environment(value: object) -> bool:
    if not _is_plain(value):
        return False
    assert isinstance(value, Mapping)
    return _is_words(value.get("env_vars", {}))


def _maybe(field: _Field) -> _Field:
    schema = {"anyOf": [dict(field.schema), {"type": "null"}]}
    return _Field(lambda value: value is None or field.holds(value), f"{field.words}, or null", schema)


def _whole(least: int, most: int) -> _Field:
    holds = lambda value: type(value) is int and least <= value <= most  # noqa: E731 - one line says it
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return _Field(holds, f"a whole number from {least} to {most}", schema)


def _one_of(*words: str) -> _Field:
    schema = {"type": "string", "enum": list(words)}
    return _Field(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}", schema)


_ANY = {"type": "string"}
ID_WORDS = "1 to 256 characters, no /, neither . nor .., which no address can name, nor all or last, which commands use"
_ID = _Field(
    lambda value: is_text(value) and 0 < len(value) <= 256 and "/" not in value and value not in _NO_IDS,
    ID_WORDS,
    {
        "type": "string",
        "minLength": 1,
        "maxLength": 256,
        "pattern": r"^[^/]*[^/.][^/]*$|^\.{3,}$",
        "not": {"enum": sorted(RESERVED_IDS)},
    },
)
_ANY_TEXT = _Field(lambda value: isinstance(value, str), "text", _ANY)
_TEXT = _Field(is_text, "text", _ANY)
_NAMES = _Field(_list_of(is_text), "a list of texts", {"type": "array", "items": _ANY})
_COUNT = _whole(0, _MOST)
_SECONDS = _Field(
    lambda value: _is_number(value) and 0 < value < _LONGEST_S,
    "seconds above 0",
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": _LONGEST_S},
)
_TIME = _Field(
    lambda value: _is_number(value) and 0 <= value < _LATEST,
    "seconds since 1970",
    {"type": "number", "minimum": 0, "exclusiveMaximum": _LATEST},
)
_AMOUNT = {"type": "number", "minimum": 0, "exclusiveMaximum": _MOST**2}
_RESOURCES = _Field(
    _is_resources, 'amounts by name, such as {"CPU": 1}', {"type": "object", "additionalProperties": _AMOUNT}
)
_FLAG = _Field(lambda value: isinstance(value, bool), "true or false", {"type": "boolean"})
_OBJECT = _Field(lambda value: isinstance(value, Mapping), "a JSON object", {"type": "object"})

_JOB = {
    "entrypoint": _Field(
        lambda value: isinstance(value, str) and bool(value.strip()) and "\0" not in value,
        "a shell command, without NUL",
        {"type": "string", "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"},
    ),
    "metadata": _Field(_is_words, "texts by name", {"type": "object", "additionalProperties": _ANY}),
    "entrypoint_resources": _RESOURCES,
}
_NAME = _Field(lambda value: is_text(value) and bool(value), "a name", {"type": "string", "minLength": 1})
_ACTOR = {
    "ray_name": _NAME,
    "placement": _RESOURCES,
    "public_name": _maybe(_NAME),
    "max_restarts": _whole(-1, _MOST),
    "restart_elsewhere": _FLAG,
    "lifetime": _maybe(_one_of("detached")),
    "max_concurrency": _maybe(_whole(1, _MOST)),
    "ready_timeout": _maybe(_SECONDS),
    "adopt": _FLAG,
    "asynchronous": _FLAG,
}
_GANG = {
    "members": _Field(
        _list_of(lambda one: isinstance(one, Mapping)),
        "a list of members",
        {"type": "array", "items": {"type": "object"}},
    ),
    "strategy": _TEXT,
    "of": _one_of("task", "actor"),
    "ready_timeout": _maybe(_SECONDS),
}
_MEMBER = {
    "name": _ANY_TEXT,
    "requirements": _RESOURCES,
    "function_digest": _TEXT,
    "arguments_digest": _TEXT,
    "arguments_bytes": _COUNT,
    "objects": _COUNT,
    "asynchronous": _FLAG,
}
_TASK = {
    "id": _ID,
    "kind": _one_of(*KINDS),
    "name": _ANY_TEXT,
    "requirements": _RESOURCES,
    "tags": _NAMES,
    "require_tags": _NAMES,
    "preferred_cluster": _maybe(_TEXT),
    "fallback": _one_of("any", "wait"),
    "allow_clusters": _maybe(_NAMES),
    "deny_clusters": _NAMES,
    "priority": _whole(-MOST_PRIORITY, MOST_PRIORITY),
    "owner": _TEXT,
    "retries": _COUNT,
    "crash_retries": _COUNT,
    "lost_retries": _COUNT,
    "retry_on": _maybe(_NAMES),
    "no_retry_on": _NAMES,
    "retry_lost": _FLAG,
    "run_timeout": _maybe(_SECONDS),
    "queue_timeout": _maybe(_SECONDS),
    "idempotency_key": _maybe(_TEXT),
    "content_key": _maybe(_TEXT),
    "after": _NAMES,
    "start_after": _maybe(_TIME),
    "runtime_env": _Field(
        _is_environment,
        f"a JSON object of at most {_DEEPEST} levels, with texts as env_vars",
        {"type": "object", "properties": {"env_vars": {"type": "object", "additionalProperties": _ANY}}},
    ),
    "function_digest": _maybe(_TEXT),
    "arguments_digest": _maybe(_TEXT),
    "arguments_bytes": _COUNT,
    "home_paths": _Field(
        _list_of(lambda one: isinstance(one, str)), "a list of texts", {"type": "array", "items": _ANY}
    ),
    "job": _maybe(_OBJECT),
    "actor": _maybe(_OBJECT),
    "gang": _maybe(_OBJECT),
    "submitted_at": _TIME,
    "program": _maybe(_TEXT),
    "keep": _maybe(_one_of("cluster")),
    "repeats": _Field(lambda value: value is None, "null; the route retry makes repetitions", {"type": "null"}),
}

PARTS: Mapping[str, Mapping[str, _Field]] = {
    "Task": _TASK,
    "Job": _JOB,
    "Actor": _ACTOR,
    "Gang": _GANG,
    "Member": _MEMBER,
}
"""All that may be said of an item, by its parts; what is documented is made from this."""

"""Converts pydantic's errors to sentences for the person who edits the file, one per problem, with its line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ray_multicluster_scheduler.common.control_characters import escaped, is_one_line
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig, Tls
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig, PoolList, pool_problem
from ray_multicluster_scheduler.control_plane.config.settings import (
    OwnerLimits,
    RetryBackoff,
    ServiceTls,
    Settings,
    Threshold,
    Tracing,
)
from ray_multicluster_scheduler.control_plane.config.yaml_text import NO_LINES, LineIndex

_MAX_SHOWN = 20
_SECRET_KEYS = frozenset({"auth_token"})
_MODELS: dict[str, type[BaseModel]] = {
    "settings": Settings,
    "resource_threshold": Threshold,
    "retry_backoff": RetryBackoff,
    "owners": OwnerLimits,
    "service_tls": ServiceTls,
    "tracing": Tracing,
    "clusters": ClusterConfig,
    "tls": Tls,
    "pools": PoolConfig,
}
_LISTED = 10
"""More keys than these are not problems in one line."""
_IN_SETTINGS = "under settings"
_PLACES: dict[str, type[BaseModel]] = {
    _IN_SETTINGS: Settings,
    "to an entry of clusters": ClusterConfig,
    "to an entry of pools": PoolConfig,
}
TOP_KEYS = ("settings", "clusters", "pools")
NEXT_STEP = "correct it; `rmcs explain CONFIGURATION` names every key"
"""This command works whatever the file looks like."""
AT_A_PLACE = "at_a_place"
"""The type of an error whose context has its location as ``place``."""

Location = tuple[int | str, ...]
Rows = Mapping[str, Sequence[Any]]
"""The entries of ``clusters`` and ``pools``, by these keys."""


class ConfigProblem(NamedTuple):
    """One problem: a sentence without its full stop, and its line in the file, if known."""

    sentence: str
    line: int | None = None


def config_error(
    source: str, found: Sequence[ConfigProblem], *, cluster: str | None = None, lines: LineIndex = NO_LINES
) -> ConfigurationError:
    """One error for all problems and all duplicate keys, in the order of their lines; text of users is escaped."""
    everything = [*found, *(ConfigProblem(*one) for one in lines.duplicates)]
    ordered = sorted(everything, key=lambda one: one.line or math.inf)
    problems = [ConfigProblem(escaped(one.sentence), one.line) for one in ordered]
    if len(problems) == 1:
        (one,) = problems
        line = "" if one.line is None else f", line {one.line}"
        return ConfigurationError(f"{source}{line}: {one.sentence}.", cluster=cluster, next_step=NEXT_STEP)
    shown = [f"line {one.line}: {one.sentence}" if one.line else one.sentence for one in problems[:_MAX_SHOWN]]
    if len(problems) > _MAX_SHOWN:
        shown.append(f"and {len(problems) - _MAX_SHOWN} more")
    message = "\n  ".join([f"{source}: {len(problems)} things are wrong:", *shown])
    return ConfigurationError(message, cluster=cluster, next_step=NEXT_STEP)


def validation_error(
    source: str,
    error: ValidationError,
    *,
    rows: Rows,
    variables: Mapping[str, str],
    lines: LineIndex = NO_LINES,
    repeated: Sequence[ConfigProblem] = (),
) -> ConfigurationError:
    """One error for all that pydantic found, and the ``repeated`` names, unless it found those."""
    details = error.errors(include_url=False)
    found = [ConfigProblem(_sentence(one, rows, variables), _line(one, variables, lines)) for one in details]
    found += [one for one in repeated if one not in found]
    first = details[0]["loc"]
    cluster = _name_of_row(first, rows) if first[:1] == ("clusters",) else None
    return config_error(source, found, cluster=cluster, lines=lines)


def pools_from(rows: Sequence[Any], source: str, clusters: Iterable[str]) -> tuple[PoolConfig, ...]:
    """Check pools apart from the rest of a configuration. Raises ConfigurationError."""
    try:
        pools = PoolList.model_validate({"pools": rows}).pools
    except ValidationError as error:
        raise validation_error(source, error, rows={"pools": rows}, variables={}) from None
    problem = pool_problem(pools, clusters)
    if problem is not None:
        raise config_error(source, [ConfigProblem(problem[1])])
    return pools


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'weight'?)``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=5, cutoff=0.6)
    if not close:
        return ""
    # For auth_token_file, auth_token_path is a better suggestion than the shorter auth_token.
    longer = [one for one in close if word.startswith(f"{close[0]}_") and one.startswith(f"{close[0]}_")]
    return f" (did you mean {(longer or close)[0]!r}?)"


def unknown_key(key: str, known: Sequence[str]) -> str:
    """A sentence about an unknown key: where it belongs, the nearest known key, or a short list of known keys."""
    place = next((place for place, model in _PLACES.items() if key in model.model_fields), None)
    if place is not None:
        return f"unknown key; it belongs {place}"
    meant = did_you_mean(key, known)
    if not meant and tuple(known) == TOP_KEYS:
        meant = did_you_mean(key, Settings.model_fields).replace("?", f", {_IN_SETTINGS}?")
    return "unknown key" + (meant or _listed(key, known))


def _listed(key: str, known: Sequence[str]) -> str:
    """Known keys that share a word with it, else all, unless they are many."""
    words = {word for word in key.split("_") if len(word) > 3}
    similar = [one for one in known if words.intersection(one.split("_"))]
    if similar:
        return f"; known keys like it are {', '.join(similar)}"
    return f"; known keys are {', '.join(known)}" if len(known) <= _LISTED else ""


def _sentence(detail: ErrorDetails, rows: Rows, variables: Mapping[str, str]) -> str:
    location = detail["loc"]
    where = _location_text(location, rows, variables)
    if detail["type"] == "extra_forbidden":
        return f"{where}: {unknown_key(str(location[-1]), _known_keys(location))}"
    if detail["type"] == "missing":
        return f"{where}: is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in ("value_error", AT_A_PLACE):
        return f"{where}: {message}" if where else message
    return f"{where}: {_lower(message).replace('input should be', 'expected')}{_got(detail)}"


def _line(detail: ErrorDetails, variables: Mapping[str, str], lines: LineIndex) -> int | None:
    """The line of an error; validators of a whole model give the location themselves."""
    location: Location = detail["ctx"]["place"] if detail["type"] == AT_A_PLACE else detail["loc"]
    if _is_variable(location, variables):
        return None
    return lines.line_of(location)


def _location_text(location: Location, rows: Rows, variables: Mapping[str, str]) -> str:
    if _is_variable(location, variables):
        inner = ".".join(str(part) for part in location[2:])
        return f"environment variable {variables[str(location[1])]}" + (f", {inner}" if inner else "")
    if not location:
        return ""
    if location[0] in rows and len(location) > 1:
        name, key = _name_of_row(location, rows), str(location[0])
        label = f"{key.removesuffix('s')} {name}" if name else f"{key}[{location[1]}]"
        inner = ".".join(str(part) for part in location[2:])
        return f"{label}, {inner}" if inner else label
    return ".".join(str(part) for part in location)


def _is_variable(location: Location, variables: Mapping[str, str]) -> bool:
    return len(location) > 1 and location[0] == "settings" and location[1] in variables


def _name_of_row(location: Location, rows: Rows) -> str | None:
    """The name of the cluster or pool at a location; None if it has none, or one that cannot be shown."""
    if len(location) < 2 or not isinstance(location[1], int):
        return None
    row = rows[str(location[0])][location[1]]
    name = row.get("name") if isinstance(row, Mapping) else getattr(row, "name", None)
    return name if isinstance(name, str) and name and is_one_line(name) else None


def _known_keys(location: Location) -> list[str]:
    models = [_MODELS[part] for part in location[:-1] if isinstance(part, str) and part in _MODELS]
    model = models[-1] if models else None
    return list(model.model_fields) if model else list(TOP_KEYS)


def _got(detail: ErrorDetails) -> str:
    """The invalid value, unless it is or may contain a secret."""
    value = detail["input"]
    if any(part in _SECRET_KEYS for part in detail["loc"]):
        return "; quote it if it looks like a number" if isinstance(value, (int, float)) else ""
    if detail["type"] == "string_type" and isinstance(value, (int, float)):  # also true and false, which `no` means
        return f", got {value!r}; quote it"
    return f", got {value!r}" if isinstance(value, (str, int, float, type(None))) else f", got {type(value).__name__}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]

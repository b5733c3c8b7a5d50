"""From pydantic's errors to sentences for the person who edits the file, one for each thing that is wrong."""

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
from ray_multicluster_scheduler.control_plane.config.settings import (
    OwnerLimits,
    RetryBackoff,
    ServiceTls,
    Settings,
    Threshold,
    Tracing,
)
from ray_multicluster_scheduler.control_plane.config.yaml_text import NO_LINES, Lines

_SHOWN = 20
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
}
_LISTED = 10
"""More keys than these are not told in one line."""
_IN_SETTINGS = "under settings"
_PLACES: dict[str, type[BaseModel]] = {_IN_SETTINGS: Settings, "to an entry of clusters": ClusterConfig}
TOP_KEYS = ("settings", "clusters")
NEXT_STEP = "correct it; `rmcs explain CONFIGURATION` names every key"
"""Whoever has the package has that, whatever the file looks like."""
AT_A_PLACE = "at_a_place"
"""The type of an error that says itself where it is, in its context's ``place``."""

Location = tuple[int | str, ...]


class Wrong(NamedTuple):
    """One thing that is wrong: a sentence without its full stop, and the line of the file if that is known."""

    sentence: str
    line: int | None = None


def all_wrong(
    source: str,
    found: Sequence[Wrong],
    *,
    cluster: str | None = None,
    lines: Lines = NO_LINES,
) -> ConfigurationError:
    """One error for all that was found, and for what is doubled in the text of these lines, in their order; what others
    wrote is spelt out."""
    everything = [*found, *(Wrong(*one) for one in lines.doubled)]
    told = [Wrong(escaped(one.sentence), one.line) for one in sorted(everything, key=lambda one: one.line or math.inf)]
    if len(told) == 1:
        (one,) = told
        line = "" if one.line is None else f", line {one.line}"
        return ConfigurationError(f"{source}{line}: {one.sentence}.", cluster=cluster, next_step=NEXT_STEP)
    shown = [f"line {one.line}: {one.sentence}" if one.line else one.sentence for one in told[:_SHOWN]]
    if len(told) > _SHOWN:
        shown.append(f"and {len(told) - _SHOWN} more")
    message = "\n  ".join([f"{source}: {len(told)} things are wrong:", *shown])
    return ConfigurationError(message, cluster=cluster, next_step=NEXT_STEP)


def complaint(
    source: str,
    error: ValidationError,
    *,
    rows: Sequence[Any],
    variables: Mapping[str, str],
    lines: Lines = NO_LINES,
) -> ConfigurationError:
    """All that pydantic found."""
    details = error.errors(include_url=False)
    found = [Wrong(_sentence(one, rows, variables), _line(one, variables, lines)) for one in details]
    return all_wrong(source, found, cluster=_cluster_name(details[0]["loc"], rows), lines=lines)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'weight'?)``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=5, cutoff=0.6)
    if not close:
        return ""
    # Whoever wrote auth_token_file has not merely written too much of auth_token: auth_token_path is nearer.
    longer = [one for one in close if word.startswith(f"{close[0]}_") and one.startswith(f"{close[0]}_")]
    return f" (did you mean {(longer or close)[0]!r}?)"


def unknown_key(key: str, known: Sequence[str]) -> str:
    """With where it belongs, or what was meant; with all that there are if nothing is near and they are few."""
    place = next((place for place, model in _PLACES.items() if key in model.model_fields), None)
    if place is not None:
        return f"unknown key; it belongs {place}"
    meant = did_you_mean(key, known)
    if not meant and tuple(known) == TOP_KEYS:
        meant = did_you_mean(key, Settings.model_fields).replace("?", f", {_IN_SETTINGS}?")
    return "unknown key" + (meant or _listed(key, known))


def _listed(key: str, known: Sequence[str]) -> str:
    """Those that share a word with it, else all, unless they are many."""
    words = {word for word in key.split("_") if len(word) > 3}
    akin = [one for one in known if words.intersection(one.split("_"))]
    if akin:
        return f"; known keys like it are {', '.join(akin)}"
    return f"; known keys are {', '.join(known)}" if len(known) <= _LISTED else ""


def _sentence(detail: ErrorDetails, rows: Sequence[Any], variables: Mapping[str, str]) -> str:
    location = detail["loc"]
    where = _where(location, rows, variables)
    if detail["type"] == "extra_forbidden":
        return f"{where}: {unknown_key(str(location[-1]), _known_keys(location))}"
    if detail["type"] == "missing":
        return f"{where}: is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in ("value_error", AT_A_PLACE):
        return f"{where}: {message}" if where else message
    return f"{where}: {_lower(message).replace('input should be', 'expected')}{_got(detail)}"


def _line(detail: ErrorDetails, variables: Mapping[str, str], lines: Lines) -> int | None:
    """What a validator of the whole has found says itself where that is."""
    location: Location = detail["ctx"]["place"] if detail["type"] == AT_A_PLACE else detail["loc"]
    if _of_a_variable(location, variables):
        return None
    return lines.of(location)


def _where(location: Location, rows: Sequence[Any], variables: Mapping[str, str]) -> str:
    if _of_a_variable(location, variables):
        inner = ".".join(str(part) for part in location[2:])
        return f"environment variable {variables[str(location[1])]}" + (f", {inner}" if inner else "")
    if not location:
        return ""
    if location[0] == "clusters" and len(location) > 1:
        name = _cluster_name(location, rows)
        label = f"cluster {name}" if name else f"clusters[{location[1]}]"
        inner = ".".join(str(part) for part in location[2:])
        return f"{label}, {inner}" if inner else label
    return ".".join(str(part) for part in location)


def _of_a_variable(location: Location, variables: Mapping[str, str]) -> bool:
    return len(location) > 1 and location[0] == "settings" and location[1] in variables


def _cluster_name(location: Location, rows: Sequence[Any]) -> str | None:
    """None where there is none, or none that could be shown as it is."""
    if len(location) < 2 or location[0] != "clusters" or not isinstance(location[1], int):
        return None
    row = rows[location[1]]
    name = row.get("name") if isinstance(row, Mapping) else getattr(row, "name", None)
    return name if isinstance(name, str) and name and is_one_line(name) else None


def _known_keys(location: Location) -> list[str]:
    models = [_MODELS[part] for part in location[:-1] if isinstance(part, str) and part in _MODELS]
    model = models[-1] if models else None
    return list(model.model_fields) if model else list(TOP_KEYS)


def _got(detail: ErrorDetails) -> str:
    """What stood there, unless it is, or may hold, a secret."""
    value = detail["input"]
    if any(part in _SECRET_KEYS for part in detail["loc"]):
        return "; quote it if it looks like a number" if isinstance(value, (int, float)) else ""
    if detail["type"] == "string_type" and isinstance(value, (int, float)):  # also true and false, which `no` means
        return f", got {value!r}; quote it"
    return f", got {value!r}" if isinstance(value, (str, int, float, type(None))) else f", got {type(value).__name__}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]

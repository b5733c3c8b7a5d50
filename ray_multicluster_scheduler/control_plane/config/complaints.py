"""From pydantic's errors to sentences for the person who edits the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig, Tls
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits, RetryBackoff, Settings, Threshold

_SHOWN = 5
_SECRET_KEYS = frozenset({"auth_token"})
_MODELS: dict[str, type[BaseModel]] = {
    "settings": Settings,
    "resource_threshold": Threshold,
    "retry_backoff": RetryBackoff,
    "owners": OwnerLimits,
    "clusters": ClusterConfig,
    "tls": Tls,
}
TOP_KEYS = ("settings", "clusters")


def complaint(
    source: str, error: ValidationError, *, rows: Sequence[Any], variables: Mapping[str, str]
) -> ConfigurationError:
    """One error for all that is wrong, first things first."""
    details = error.errors(include_url=False)
    sentences = [_sentence(detail, rows, variables) for detail in details[:_SHOWN]]
    if len(details) > _SHOWN:
        sentences.append(f"and {len(details) - _SHOWN} more")
    return ConfigurationError(
        f"{source}: {'; '.join(sentences)}.",
        cluster=_cluster_name(details[0]["loc"], rows),
        next_step="correct it; examples/clusters.yaml shows every key in use",
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'weight'?)``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _sentence(detail: ErrorDetails, rows: Sequence[Any], variables: Mapping[str, str]) -> str:
    location = detail["loc"]
    where = _where(location, rows, variables)
    if detail["type"] == "extra_forbidden":
        key = str(location[-1])
        known = _known_keys(location)
        return f"{where}: unknown key{did_you_mean(key, known)}; known keys are {', '.join(known)}"
    if detail["type"] == "missing":
        return f"{where}: is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {_lower(message).replace('input should be', 'expected')}{_got(detail)}"


def _where(location: tuple[int | str, ...], rows: Sequence[Any], variables: Mapping[str, str]) -> str:
    if len(location) > 1 and location[0] == "settings" and location[1] in variables:
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


def _cluster_name(location: tuple[int | str, ...], rows: Sequence[Any]) -> str | None:
    if len(location) < 2 or location[0] != "clusters" or not isinstance(location[1], int):
        return None
    row = rows[location[1]]
    name = row.get("name") if isinstance(row, Mapping) else getattr(row, "name", None)
    return name if isinstance(name, str) and name else None


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    models = [_MODELS[part] for part in location[:-1] if isinstance(part, str) and part in _MODELS]
    model = models[-1] if models else None
    return list(model.model_fields) if model else list(TOP_KEYS)


def _got(detail: ErrorDetails) -> str:
    """What stood there, unless it is, or may hold, a secret."""
    value = detail["input"]
    if any(part in _SECRET_KEYS for part in detail["loc"]):
        return "; quote it if it looks like a number" if isinstance(value, (int, float)) else ""
    return f", got {value!r}" if isinstance(value, (str, int, float, type(None))) else f", got {type(value).__name__}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]

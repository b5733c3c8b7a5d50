"""Limits of one owner that are set at run time, by an operator, or read back from the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import MAX_PRIORITY
from ray_multicluster_scheduler.control_plane.config.settings import MAX_OF_AN_OWNER, OwnerLimits
from ray_multicluster_scheduler.control_plane.config.validation_errors import did_you_mean

_KNOWN = tuple(OwnerLimits.model_fields)


def owner_limits_from(values: Mapping[str, Any]) -> OwnerLimits:
    """Limits of an owner; limits that are not given have their defaults. Raises ConfigurationError."""
    try:
        return OwnerLimits.model_validate(dict(values), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"][:1])
    if first["type"] == "extra_forbidden":
        raise ConfigurationError(
            f"An owner has no limit {key[:100]!r}{did_you_mean(key, _KNOWN)}.", next_step=f"use {', '.join(_KNOWN)}"
        )
    why = first["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
    next_step = (
        "give a number above 0"
        if key == "weight"
        else "give a number, or for no limit none (null in JSON, None in Python)"
    )
    raise ConfigurationError(f"{key} is {str(first['input'])[:100]!r}: {why}.", next_step=next_step)


def stored_owner_limits(values: Mapping[str, Any]) -> OwnerLimits:
    """Limits from the store. Values beyond a bound, written by a version without bounds, are cut to it; limits that
    only a later version knows are dropped."""
    known = {name: value for name, value in values.items() if name in _KNOWN and value is not None}
    for name in known.keys() - {"weight"}:
        most = MAX_PRIORITY if name == "max_priority" else MAX_OF_AN_OWNER
        known[name] = max(-most, min(known[name], most))
    return OwnerLimits.model_validate(known)

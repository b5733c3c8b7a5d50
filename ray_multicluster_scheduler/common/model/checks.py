"""Checks of single values that programs and requests give: whole numbers, priorities."""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import MAX_PRIORITY


def valid_integer(value: object, what: str) -> int:
    """The value. Raises ConfigurationError if it is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} is {value!r}.", next_step="give a whole number")
    return value


def valid_priority(value: object) -> int:
    """The value. Raises ConfigurationError if it is not a priority."""
    priority = valid_integer(value, "priority")
    if abs(priority) > MAX_PRIORITY:
        raise ConfigurationError(
            f"priority is {priority}.", next_step=f"give a whole number between {-MAX_PRIORITY} and {MAX_PRIORITY}"
        )
    return priority

"""Checks of single values that users give for the fields of an item."""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import MOST_PRIORITY


def whole(value: object, what: str) -> int:
    """Raises ConfigurationError for what is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} is {value!r}.", next_step="give a whole number")
    return value


def priority_of(value: object) -> int:
    """Raises ConfigurationError for what is no priority."""
    priority = whole(value, "priority")
    if abs(priority) > MOST_PRIORITY:
        raise ConfigurationError(
            f"priority is {priority}.", next_step=f"give a whole number between {-MOST_PRIORITY} and {MOST_PRIORITY}"
        )
    return priority

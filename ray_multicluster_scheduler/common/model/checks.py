"""Checks of single values that programs and requests give: whole numbers, priorities."""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.item_fields import MAX_PRIORITY


def valid_integer(value: object, what: str) -> int:
    """The value. Raises ConfigurationError if it is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} is {value!r}.", next_step="give a whole number")
    return value


def valid_priority(value: object) -> float:
    """The value, as :func:`plain_number` returns it. Raises ConfigurationError if it is not a priority."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MAX_PRIORITY:
        raise ConfigurationError(
            f"priority is {value!r}.", next_step=f"give a number between {-MAX_PRIORITY} and {MAX_PRIORITY}"
        )
    return plain_number(value)


def plain_number(value: float) -> float:
    """The same number; a whole one without a fraction, so that it is shown as 5, not as 5.0."""
    return int(value) if value % 1 == 0 else float(value)

"""Pages: a cursor is what the page before said, and means nothing to whoever carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError

MOST_ROWS = 1000
_LAST_NUMBER = 2**63 - 1


def number_of(cursor: str | None) -> int | None:
    """The number of an item that a cursor stands for. Raises ConfigurationError."""
    if cursor is None:
        return None
    if not cursor.isdecimal() or not cursor.isascii():
        raise ConfigurationError(f"after is {cursor[:100]!r}.", next_step="give what the page before said, or nothing")
    return min(int(cursor[:30]), _LAST_NUMBER)


def cursor_of(number: int | None) -> str | None:
    return None if number is None else str(number)


def rows_at_most(limit: int) -> int:
    """Raises ConfigurationError for less than one."""
    if limit < 1:
        raise ConfigurationError(f"limit is {str(limit)[:30]}.", next_step=f"give 1 to {MOST_ROWS:,}, or nothing")
    return min(limit, MOST_ROWS)


def page_of(
    rows: Sequence[dict[str, Any]], after: str | None, limit: int | None
) -> tuple[Sequence[dict[str, Any]], str | None]:
    """The rows behind the one with the id ``after``, and the cursor for more. Raises ConfigurationError."""
    begin = 0
    if after is not None:
        begin = next((at for at, row in enumerate(rows, start=1) if row["id"] == after), 0)
        if not begin:
            raise ConfigurationError(
                f"There is no row {after[:100]!r} any more.", next_step="begin with the first page"
            )
    if limit is None:
        return rows[begin:], None
    page = rows[begin : begin + rows_at_most(limit)]
    return page, page[-1]["id"] if page and begin + len(page) < len(rows) else None

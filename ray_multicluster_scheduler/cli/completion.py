"""What a shell offers when Tab is pressed: ids and names that there are now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

_MOST = 50
_PATIENCE_S = 2.0

Offered = list[tuple[str, str]]


def ids(kind: str | None = None, *, states: str | None = None, words: tuple[str, ...] = ("last",)) -> Any:
    """Of items of this kind in these states, and the words that stand for some."""

    def offer(ctx: typer.Context, incomplete: str) -> Offered:
        def ask() -> Offered:
            from ray_multicluster_scheduler.cli.service import connect, path_of

            service = connect(ctx.params.get("address"), answer_s=_PATIENCE_S)
            rows = service.rows(path_of("items"), "items", _MOST, kind=kind, state=states, begins=incomplete or None)
            return [(str(row["id"]), f"{row['state']} {row['name']}") for row in rows]

        return [(word, "") for word in words if word.startswith(incomplete)] + _quietly(ask)

    return offer


def clusters(ctx: typer.Context, incomplete: str) -> Offered:
    """Names of clusters."""

    def ask() -> Offered:
        from ray_multicluster_scheduler.cli.service import connect, path_of

        rows = connect(ctx.params.get("address"), answer_s=_PATIENCE_S).get(path_of("clusters"))["clusters"]
        return [(str(row["name"]), str(row["state"])) for row in rows if str(row["name"]).startswith(incomplete)]

    return _quietly(ask)


def _quietly(ask: Callable[[], Offered]) -> Offered:
    """Nothing is written between what a person types: without a service there is just nothing to offer."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    try:
        return ask()
    except (SchedulerError, OSError):
        return []

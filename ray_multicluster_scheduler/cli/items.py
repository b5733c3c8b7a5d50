"""What commands about items have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.output import Format, as_text, say
from ray_multicluster_scheduler.cli.service import path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service import Service


def told_of(service: Service, item_id: str) -> dict[str, Any]:
    """An item as it is now; the bytes of its value are left out."""
    item: dict[str, Any] = service.get(path_of("items", item_id))
    if item.get("outcome"):
        item["outcome"] = _without_value(item["outcome"])
    return item


def _without_value(outcome: dict[str, Any]) -> dict[str, Any]:
    result = outcome.get("result")
    kept = result and {key: one for key, one in result.items() if key not in ("payload", "digest")}
    origin = outcome.get("origin")
    return {**outcome, "result": kept or None, "origin": _without_value(origin) if origin else None}


def how_it_ends(answer: dict[str, Any]) -> str:
    """After a cancel: what waited is over at once, what runs a little later, and some were over before."""
    state = str(answer["state"])
    if not answer.get("changed", True):
        return f"is over already: {state}"
    return "is cancelled" if state == "CANCELLED" else "was asked to end"


def each(
    ids: Sequence[str],
    order: Callable[[str], dict[str, Any]],
    output: Format,
    done: Callable[[dict[str, Any]], str],
    none: str = "there is none to which that could be done",
    count: Callable[[int], str] | None = None,
) -> None:
    """Give an order for each. One that is refused is told, and does not stop the others; then it ends with 1.

    The ids are data; what happened to them is said beside it: ``done`` says that of an answer, ``count`` of how many it
    was done to, and ``none`` where there was nothing to do. Raises SchedulerError if it is the only one."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    answers, refused = [], 0
    for one in ids:
        try:
            answers.append(order(one))
        except SchedulerError as error:
            if len(ids) == 1:
                raise
            refused += 1
            say(f"{one}: {error}")
            continue
        if output is Format.table:
            say(f"{one} {done(answers[-1])}")
            typer.echo(answers[-1]["id"])
    if output is not Format.table:
        typer.echo(as_text(answers, output))
    if not ids:
        say(none)
    elif count is not None:
        say(count(len(answers)))
    if refused:
        raise typer.Exit(exit_codes.NOT_DONE)

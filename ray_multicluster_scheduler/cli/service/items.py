"""What commands about items have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import Format, as_text, say
from ray_multicluster_scheduler.cli.service.client import path_of
from ray_multicluster_scheduler.cli.service.concurrent_requests import side_by_side
from ray_multicluster_scheduler.cli.terminal.status_line import Meanwhile

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service
    from ray_multicluster_scheduler.common.exception import SchedulerError

FEW = 100
"""More than these are ordered side by side."""


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
    """Give an order for each. One that is refused is told, and does not stop the others; then it ends with 1. Nor does
    it stop them that nobody reads which ids those were. Of many, those that are left are not ordered of a service that
    is away, which is said.

    The ids are data; what happened to them is said beside it: ``done`` says that of an answer, ``count`` of how many it
    was done to, and ``none`` where there was nothing to do. Raises SchedulerError if it is the only one."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    refused, answered, left = 0, 0, 0
    unread: BrokenPipeError | None = None
    answers: list[dict[str, Any]] = []
    if len(ids) > FEW and output is Format.table:
        say(f"{len(ids):,} items; Ctrl+C ends it, and what was done until then stays done")
    with Meanwhile() as reason:
        for one, answer in zip(ids, _answers(ids, order), strict=True):
            if answer is None:
                left += 1
                continue
            if isinstance(answer, SchedulerError):
                if len(ids) == 1:
                    raise answer
                refused += 1
                say(f"{one}: {answer}")
                continue
            answered += 1
            if output is Format.table:
                say(f"{one} {done(answer)}")
                unread = unread or _printed(str(answer["id"]))
            else:
                answers.append(answer)
            if len(ids) > FEW and output is not Format.table:
                reason.show(f"{answered + refused:,} of {len(ids):,}")
    if output is not Format.table:
        typer.echo(as_text(answers, output))
    if left:
        say(f"{left:,} more are as they were: the service was not asked any more")
    if not ids:
        say(none)
    elif count is not None:
        say(count(answered))
    if unread is not None:
        raise unread
    if refused:
        raise typer.Exit(exit_codes.NOT_DONE)


def _printed(text: str) -> BrokenPipeError | None:
    """What there is to say where nobody reads any more: not before all orders are given, as in `… all | head -1`."""
    try:
        typer.echo(text)
    except BrokenPipeError as error:
        return error
    return None


def _answers(
    ids: Sequence[str], order: Callable[[str], dict[str, Any]]
) -> Iterable[dict[str, Any] | SchedulerError | None]:
    """What each was answered, or why it was refused. A few are done in the order in which they were named; many, whose
    order nobody has chosen, side by side, and None for those that were not begun since the service was away by then."""
    from ray_multicluster_scheduler.common.exception import SchedulerError, ServiceUnavailableError

    many, away = len(ids) > FEW, threading.Event()

    def answer(one: str) -> dict[str, Any] | SchedulerError | None:
        if many and away.is_set():
            return None
        try:
            return order(one)
        except SchedulerError as error:
            if isinstance(error, ServiceUnavailableError):
                away.set()
            return error

    return side_by_side(answer, ids) if many else map(answer, ids)

"""Requests about items that several commands share: details, one change for many items, and retries."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, TypeVar

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import Format, Spinner, as_text, notify
from ray_multicluster_scheduler.cli.service.client import Service, api_path
from ray_multicluster_scheduler.common.exception import SchedulerError, ServiceUnavailableError

T = TypeVar("T")
R = TypeVar("R")
CONCURRENT = 8
SEQUENTIAL_MAX = 100
"""More items than these are changed concurrently, with a progress display."""


def item_details(service: Service, item_id: str) -> dict[str, Any]:
    """An item without the bytes of its value."""
    item: dict[str, Any] = service.get(api_path("items", item_id))
    if item.get("outcome"):
        item["outcome"] = _without_value(item["outcome"])
    return item


def _without_value(outcome: dict[str, Any]) -> dict[str, Any]:
    result = outcome.get("result")
    kept = result and {key: one for key, one in result.items() if key not in ("payload", "digest")}
    origin = outcome.get("origin")
    return {**outcome, "result": kept or None, "origin": _without_value(origin) if origin else None}


def run_concurrently(ask: Callable[[T], R], inputs: Iterable[T]) -> Iterator[R]:
    """The answers in the order of the inputs, a few requests at a time; leaves no request behind if the caller stops
    iterating. Raises what ``ask`` raises."""
    from concurrent.futures import ThreadPoolExecutor

    rest = iter(inputs)
    with ThreadPoolExecutor(CONCURRENT) as pool:
        while batch := list(islice(rest, CONCURRENT)):
            yield from pool.map(ask, batch)


def change_each(
    ids: Sequence[str],
    change: Callable[[str], dict[str, Any]],
    output: Format,
    outcome: Callable[[dict[str, Any]], str],
    none: str = "no item is in a state that allows this",
    summary: Callable[[int], str] = lambda _: "",
) -> None:
    """Change each item, print its id, and print a message with ``outcome`` of the answer.

    A refusal is printed and does not stop the others; the exit code is then NOT_DONE. A closed stdout does not
    either. If the service goes away while many items are changed, the rest are skipped, and their number is printed.
    Prints ``summary`` of the number of changed items at the end, or ``none`` if there was nothing to do. Raises
    SchedulerError if the only item was refused."""
    many, table = len(ids) > SEQUENTIAL_MAX, output is Format.table
    refused = changed = skipped = 0
    unread: BrokenPipeError | None = None
    answers: list[dict[str, Any]] = []
    if many and table:
        notify(f"{len(ids):,} items; Ctrl+C stops, and what was done until then stays done")
    with Spinner() as progress:
        for item_id, answer in zip(ids, _answers(ids, change, many=many), strict=True):
            if answer is None:
                skipped += 1
                continue
            if isinstance(answer, SchedulerError):
                if len(ids) == 1:
                    raise answer
                refused += 1
                notify(f"{item_id}: {answer}")
                continue
            changed += 1
            if table:
                notify(f"{item_id} {outcome(answer)}")
                unread = unread or _printed(str(answer["id"]))
            else:
                answers.append(answer)
            if many and not table:
                progress.show(f"{changed + refused:,} of {len(ids):,}")
    if not table:
        typer.echo(as_text(answers, output))
    if skipped:
        notify(f"{skipped:,} more are unchanged: the service went away")
    if text := summary(changed) if ids else none:
        notify(text)
    if unread or refused:
        raise unread or typer.Exit(exit_codes.NOT_DONE)


def _printed(text: str) -> BrokenPipeError | None:
    """Print; a closed stdout, as in `… all | head -1`, is reported only after all changes."""
    try:
        typer.echo(text)
    except BrokenPipeError as error:
        return error
    return None


def _answers(
    ids: Sequence[str], change: Callable[[str], dict[str, Any]], *, many: bool
) -> Iterable[dict[str, Any] | SchedulerError | None]:
    """The answer or the error of each. A few are changed in their order, many concurrently; then None stands for those
    that were not tried since the service went away."""
    away = threading.Event()

    def answer(item_id: str) -> dict[str, Any] | SchedulerError | None:
        if many and away.is_set():
            return None
        try:
            return change(item_id)
        except SchedulerError as error:
            if isinstance(error, ServiceUnavailableError):
                away.set()
            return error

    return run_concurrently(answer, ids) if many else map(answer, ids)


def earlier_retries(service: Service, ids: Sequence[str]) -> dict[str, str]:
    """The latest retry of each item that was retried before. Lists do not have that: each item is fetched."""
    found: dict[str, str] = {}
    answers = run_concurrently(lambda one: service.get(api_path("items", one)).get("repeated_by"), ids)
    with Spinner() as progress:
        for number, (item_id, retries) in enumerate(zip(ids, answers, strict=True), start=1):
            if retries:
                found[item_id] = str(retries[-1])
            if len(ids) > 1:
                progress.show(f"checking which were retried before: {number:,} of {len(ids):,}")
    return found


def retry_key(item_id: str, latest: str | None) -> str:
    """The idempotency key of the retry after the ``latest`` one: repeated or concurrent requests have the same."""
    return f"rmcs-retry-{sha256(json.dumps([item_id, latest]).encode()).hexdigest()}"


def already_retried(service: Service, item_id: str, retry: str) -> SchedulerError:
    """The error for an item that was retried before, with the state of that retry."""
    state = str(service.get(api_path("items", retry))["state"])
    failed = exit_codes.exit_code_of(state) in (exit_codes.FAILED, exit_codes.CANCELLED)
    step = f"retry that one: rmcs task retry {retry}" if failed else f"see that one: rmcs task show {retry}"
    return SchedulerError(
        f"{item_id} was already retried as {retry}, which is {state}.",
        task_id=item_id,
        next_step=f"{step}; or retry this one once more: --anyway",
    )

"""`rmcs task`: everything that was submitted to a service, of whatever kind."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import AT_MOST, ByOwner, OfKind, Reason
from ray_multicluster_scheduler.cli.arguments.selectors import (
    ALL,
    KINDS,
    STATES,
    UNFINISHED,
    WAITING,
    doubt_cluster,
    find_one,
    find_several,
)
from ray_multicluster_scheduler.cli.arguments.usage_errors import check_known
from ray_multicluster_scheduler.cli.layout import item_tables
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list, say
from ray_multicluster_scheduler.cli.layout.times import seconds_of
from ray_multicluster_scheduler.cli.service.client import Address, connect, path_of
from ray_multicluster_scheduler.cli.service.item_wait import Tail, follow, to_stdout
from ray_multicluster_scheduler.cli.service.items import each, how_it_ends, told_of
from ray_multicluster_scheduler.cli.service.log_follower import last_lines, said_so_far
from ray_multicluster_scheduler.cli.service.retry_guard import repeated_already, repetition_key, repetitions
from ray_multicluster_scheduler.cli.terminal.interrupts import interrupted_well

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at and steer items: tasks, actors, jobs and gangs."
)
_OVER_BADLY = ("FAILED", "CANCELLED")
_One = Annotated[
    str,
    typer.Argument(metavar="ID", help="An id, the beginning of one, or `last`.", autocompletion=completion.ids()),
]
_Unfinished = Annotated[
    list[str],
    typer.Argument(
        metavar="ID",
        help="Ids, beginnings of ids, `last`, or `all` that are not over.",
        autocompletion=completion.ids(states=",".join(UNFINISHED), words=("last", "all")),
    ),
]
_Waiting = Annotated[
    list[str],
    typer.Argument(
        metavar="ID",
        help="Ids, beginnings of ids, `last`, or `all` that wait.",
        autocompletion=completion.ids(states=",".join(WAITING), words=("last", "all")),
    ),
]
_Failed = Annotated[
    list[str],
    typer.Argument(
        metavar="ID",
        help="Ids, beginnings of ids, `last`, or `all` that failed.",
        autocompletion=completion.ids(states=",".join(_OVER_BADLY), words=("last", "all")),
    ),
]


@app.command("list")
def list_items(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            help="Only in this state, such as FAILED; may be repeated.",
            autocompletion=completion.words(*STATES),
        ),
    ] = None,
    kind: OfKind = None,
    owner: ByOwner = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Only on this cluster.", autocompletion=completion.clusters)
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only with this name.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only of the last 15m, 12h or 30d.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help=AT_MOST)] = 50,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """List items, newest first."""
    began = None
    if since is not None:
        lasts = seconds_of(since)
        if lasts is None:
            raise typer.BadParameter(f"{since!r} is no time; write 15m, 12h or 30d.", param_hint="--since")
        began = time.time() - lasts
    wanted: dict[str, Any] = {"kind": kind, "owner": owner, "cluster": cluster, "name": name, "since": began}
    given = [word for one in state or () for word in one.split(",")]
    check_known("--state", given, STATES)
    check_known("--kind", filter(None, [kind]), KINDS)
    states = ",".join(given).upper() or None
    service = connect(address)
    rows = service.rows(path_of("items"), "items", limit, state=states, **wanted)
    if cluster is not None and not rows:
        doubt_cluster(service, cluster)
    none = "no item is like that" if states or any(one is not None for one in wanted.values()) else "no item is known"
    emit_list(rows, output, lambda rows: item_tables.items_table(rows, time.time()), none)
    if len(rows) == limit:
        say(f"there may be more than these {limit}: --limit")


@app.command()
def show(item_id: _One, output: Output = Format.table, address: Address = None) -> None:
    """Show an item: state, cluster, why, and how it ended.

    Of one that failed, with the traceback of the cluster. Exit code 0 if it succeeded, 100 if it failed, 101 if it is
    not over, 103 if it was cancelled.
    """
    service = connect(address)
    item = told_of(service, find_one(service, item_id))
    emit(item, output, lambda: item_tables.item_picture(item, time.time()))
    raise typer.Exit(exit_codes.code_of(item["state"]))


@app.command()
def logs(
    item_id: _One,
    follow_it: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until it is over.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of this attempt; default: the newest.")
    ] = None,
    stream: Annotated[str | None, typer.Option("--stream", help="Only stdout or stderr.")] = None,
    tail: Tail = None,
    address: Address = None,
) -> None:
    """Print what an item printed.

    With --follow, the exit code is as of `rmcs task show`.
    """
    check_known("--stream", filter(None, [stream]), ("stdout", "stderr"))
    service = connect(address)
    found = find_one(service, item_id)
    if not follow_it:
        told = service.fetch(path_of("items", found, "logs"), attempt=attempt, stream=stream)
        to_stdout(last_lines(said_so_far(service, found, told), tail))
        return
    if attempt is not None or stream is not None:
        raise typer.BadParameter("what comes is of the newest attempt and of both streams: leave -f out.")
    with interrupted_well(service, found, cancel=False):
        item = follow(service, found, to_stdout, tail=tail)
    raise typer.Exit(exit_codes.code_of(item["state"]))


@app.command()
def cancel(
    item_ids: _Unfinished,
    reason: Reason = "",
    force: Annotated[bool, typer.Option("--force", help="At once, without a polite interrupt first.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Cancel items.

    Nothing happens to what is over.
    """
    service = connect(address)
    found = find_several(service, item_ids)
    said = {"reason": reason, "force": force}
    each(found, lambda one: service.order(path_of("items", one, "cancel"), said), output, how_it_ends)


@app.command()
def retry(
    item_ids: _Failed,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also what succeeded, or was repeated already.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Submit items that failed or were cancelled once more.

    Each becomes another item, which repeats the old one. What is not over, and without --anyway what succeeded or was
    repeated already, is refused; `all` leaves that out. Two who say it at once repeat it once.
    """
    service = connect(address)
    found = find_several(service, item_ids, states=("FAILED",))
    repeated = repetitions(service, found)
    everything = list(item_ids) == [ALL]
    left = [one for one in found if one not in repeated] if everything and not anyway else found

    def once_more(one: str) -> dict[str, Any]:
        if one in repeated and not anyway:
            raise repeated_already(service, one, repeated[one])
        key = {"Idempotency-Key": repetition_key(one, repeated.get(one))}
        answer: dict[str, Any] = service.post(path_of("items", one, "retry"), {"anyway": anyway}, headers=key)
        return answer

    def count(done: int) -> str:
        before = len(found) - len(left)
        also = f"; {before} of those that failed {'was' if before == 1 else 'were'} before" if before else ""
        return f"{done} {'is' if done == 1 else 'are'} repeated{also}"

    told = count if everything else None
    each(left, once_more, output, lambda answer: f"is repeated as {answer['id']}", _none(len(found)), told)


def _none(failed: int) -> str:
    """Why `retry all` repeats nothing."""
    if not failed:
        return "nothing is repeated: nothing has failed"
    return f"nothing is repeated: what failed ({failed}) was repeated before; --anyway does it once more"


@app.command()
def hold(item_ids: _Waiting, reason: Reason = "", output: Output = Format.table, address: Address = None) -> None:
    """Keep items from starting until they are released.

    What runs goes on.
    """
    service = connect(address)
    found = find_several(service, item_ids, states=WAITING)

    def held(answer: dict[str, Any]) -> str:
        if str(answer["state"]) not in WAITING:
            return f"is {answer['state']} and goes on; if it is tried again, it is held"
        return "is held" if answer["changed"] else "is held already"

    each(found, lambda one: service.order(path_of("items", one, "hold"), {"reason": reason}), output, held)


@app.command()
def release(item_ids: _Waiting, output: Output = Format.table, address: Address = None) -> None:
    """Let items that are held start."""
    service = connect(address)
    found = find_several(service, item_ids, states=WAITING)

    def released(answer: dict[str, Any]) -> str:
        return "may start" if answer["changed"] else "was not held"

    each(found, lambda one: service.order(path_of("items", one, "release")), output, released)


@app.command(context_settings={"ignore_unknown_options": True})  # -3 is a number here
def priority(
    item_id: _One,
    number: Annotated[int, typer.Argument(metavar="N", help="Higher numbers go first; 0 is the usual one.")],
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Give an item another priority.

    What runs goes on, and its next attempt waits with it.
    """
    service = connect(address)

    def now(answer: dict[str, Any]) -> str:
        said = f"has priority {number} {'now' if answer['changed'] else 'already'}"
        waits = str(answer["state"]) in WAITING
        return said if waits else f"{said}, which counts if it is tried again: it is {answer['state']}"

    found = find_one(service, item_id)
    each([found], lambda one: service.order(path_of("items", one, "priority"), {"priority": number}), output, now)

"""`rmcs task`: list and manage the items of a service, of all kinds; `rmcs actor`: its actors."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import (
    ByOwner,
    Follow,
    Limit,
    OfKind,
    Reason,
    Tail,
    item_argument,
    items_argument,
)
from ray_multicluster_scheduler.cli.arguments.selectors import (
    ALL,
    KINDS,
    STATES,
    UNFINISHED,
    WAITING,
    find_item,
    find_items,
    warn_if_unknown_cluster,
)
from ray_multicluster_scheduler.cli.arguments.usage_errors import check_choices
from ray_multicluster_scheduler.cli.layout.item_tables import actors_table, item_facts, items_table
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list
from ray_multicluster_scheduler.cli.layout.times import parse_duration
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect
from ray_multicluster_scheduler.cli.service.item_wait import cancel_outcome, print_log
from ray_multicluster_scheduler.cli.service.items import (
    already_retried,
    change_each,
    earlier_retries,
    item_details,
    retry_key,
)

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List and manage items: tasks, actors, jobs and gangs."
)
actor_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and kill actors.")
_One = Annotated[str, item_argument()]
_Unfinished = Annotated[list[str], items_argument("that have not ended")]
_Waiting = Annotated[list[str], items_argument("that wait", states=WAITING)]
_Failed = Annotated[list[str], items_argument("that failed", states=("FAILED", "CANCELLED"))]


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
    limit: Limit = 50,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """List items, newest first."""
    began = None
    if since is not None:
        seconds = parse_duration(since)
        if seconds is None:
            raise typer.BadParameter(f"{since!r} is no duration; write 15m, 12h or 30d.", param_hint="--since")
        began = time.time() - seconds
    filters: dict[str, Any] = {"kind": kind, "owner": owner, "cluster": cluster, "name": name, "since": began}
    given = [word for one in state or () for word in one.split(",")]
    check_choices("--state", given, STATES)
    check_choices("--kind", filter(None, [kind]), KINDS)
    states = ",".join(given).upper() or None
    service = connect(address)
    rows = service.rows(api_path("items"), "items", limit, state=states, **filters)
    if cluster is not None and not rows:
        warn_if_unknown_cluster(service, cluster)
    filtered = states or any(one is not None for one in filters.values())
    none = "no item matches" if filtered else "no item is known"
    emit_list(rows, output, lambda rows: items_table(rows, time.time()), none, limit)


@app.command()
def show(item_id: _One, output: Output = Format.table, address: Address = None) -> None:
    """Show an item: state, cluster, reason, and how it ended.

    Of one that failed, with the traceback of the cluster. Exit code 0 if it succeeded, 100 if it failed, 101 if it has
    not ended, 103 if it was cancelled.
    """
    service = connect(address)
    item = item_details(service, find_item(service, item_id))
    emit(item, output, lambda: item_facts(item, time.time()))
    raise typer.Exit(exit_codes.exit_code_of(item["state"]))


@app.command()
def logs(
    item_id: _One,
    follow_it: Follow = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of this attempt; default: the newest.")
    ] = None,
    stream: Annotated[str | None, typer.Option("--stream", help="Only stdout or stderr.")] = None,
    tail: Tail = None,
    address: Address = None,
) -> None:
    """Print the output of an item.

    With --follow, the exit code is as of `rmcs task show`.
    """
    check_choices("--stream", filter(None, [stream]), ("stdout", "stderr"))
    service = connect(address)
    found = find_item(service, item_id)
    if follow_it and (attempt is not None or stream is not None):
        raise typer.BadParameter("--follow is for the newest attempt and both streams: leave -f out.")
    print_log(service, found, until_over=follow_it, tail=tail, attempt=attempt, stream=stream)


@app.command()
def cancel(
    item_ids: _Unfinished,
    reason: Reason = "",
    force: Annotated[bool, typer.Option("--force", help="Kill at once, without an interrupt first.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Cancel items.

    An item that has ended stays as it is.
    """
    service = connect(address)
    found = find_items(service, item_ids)
    body = {"reason": reason, "force": force}
    change_each(found, lambda one: service.change(api_path("items", one, "cancel"), body), output, cancel_outcome)


@app.command()
def retry(
    item_ids: _Failed,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also what succeeded, or was retried already.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Submit failed or cancelled items again.

    Each becomes a new item. What has not ended, and without --anyway what succeeded or was retried already, is refused;
    `all` skips those. Two concurrent requests for the same item retry it once.
    """
    service = connect(address)
    found = find_items(service, item_ids, states=("FAILED",))
    retried = earlier_retries(service, found)
    everything = list(item_ids) == [ALL]
    left = [one for one in found if one not in retried] if everything and not anyway else found

    def submit_again(one: str) -> dict[str, Any]:
        if one in retried and not anyway:
            raise already_retried(service, one, retried[one])
        key = {"Idempotency-Key": retry_key(one, retried.get(one))}
        answer: dict[str, Any] = service.post(api_path("items", one, "retry"), {"anyway": anyway}, headers=key)
        return answer

    def summary(done: int) -> str:
        if not everything:
            return ""
        before = len(found) - len(left)
        also = f"; {before} of those that failed {'was' if before == 1 else 'were'} before" if before else ""
        return f"{done} {'is' if done == 1 else 'are'} retried{also}"

    none = "nothing is retried: nothing has failed"
    if found:
        none = f"nothing is retried: what failed ({len(found)}) was retried before; --anyway does it once more"
    change_each(left, submit_again, output, lambda answer: f"is retried as {answer['id']}", none, summary)


@app.command()
def hold(item_ids: _Waiting, reason: Reason = "", output: Output = Format.table, address: Address = None) -> None:
    """Keep items from starting until they are released.

    Running items are not affected.
    """
    service = connect(address)
    found = find_items(service, item_ids, states=WAITING)

    def outcome(answer: dict[str, Any]) -> str:
        if str(answer["state"]) not in WAITING:
            return f"is {answer['state']} and continues; if it is retried, it is held"
        return "is held" if answer["changed"] else "is held already"

    body = {"reason": reason}
    change_each(found, lambda one: service.change(api_path("items", one, "hold"), body), output, outcome)


@app.command()
def release(item_ids: _Waiting, output: Output = Format.table, address: Address = None) -> None:
    """Let held items start."""
    service = connect(address)
    found = find_items(service, item_ids, states=WAITING)

    def outcome(answer: dict[str, Any]) -> str:
        return "may start" if answer["changed"] else "was not held"

    change_each(found, lambda one: service.change(api_path("items", one, "release")), output, outcome)


@app.command(context_settings={"ignore_unknown_options": True})  # -3 is a number here
def priority(
    item_id: _One,
    number: Annotated[float, typer.Argument(metavar="N", help="Higher numbers go first; the default is 0.")],
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Change the priority of an item.

    A running attempt is not affected; the next one is queued with it.
    """
    service = connect(address)

    def outcome(answer: dict[str, Any]) -> str:
        text = f"has priority {answer['priority']} {'now' if answer['changed'] else 'already'}"
        waits = str(answer["state"]) in WAITING
        return text if waits else f"{text}, which counts if it is retried: it is {answer['state']}"

    found, body = find_item(service, item_id), {"priority": number}
    change_each([found], lambda one: service.change(api_path("items", one, "priority"), body), output, outcome)


@actor_app.command("list")
def list_actors(output: Output = Format.table, address: Address = None) -> None:
    """List actors that are alive, or were recently; oldest first."""
    rows = connect(address).get(api_path("actors"))["actors"]
    emit_list(rows, output, actors_table, "no actor is alive, or was recently")


@actor_app.command()
def kill(
    actor_ids: Annotated[list[str], items_argument("that are alive", "actor", names="names, ")],
    reason: Reason = "",
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Kill actors, also detached ones."""
    service = connect(address)
    names = {row["name"]: row["id"] for row in service.get(api_path("actors"))["actors"] if row["state"] in UNFINISHED}
    found = find_items(service, [names.get(one, one) for one in actor_ids], "actor")
    body = {"reason": reason, "force": True}

    def outcome(answer: dict[str, Any]) -> str:
        return "was killed" if answer["changed"] else f"has already ended: {answer['state']}"

    change_each(found, lambda one: service.change(api_path("items", one, "cancel"), body), output, outcome)

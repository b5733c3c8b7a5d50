"""`rmcs queue`: what waits and why; start nothing new of somebody, or somewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import AT_MOST, ByOwner, Reason
from ray_multicluster_scheduler.cli.layout import item_tables
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.service.client import Address, connect, path_of

if TYPE_CHECKING:
    from rich.console import Group

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
_WITH_A_NAME = {"allow_extra_args": True}
"""Alone, it could be that of a cluster or of an owner: whoever wrote it is asked."""
_Cluster = Annotated[
    str | None, typer.Option("--cluster", help="That of this cluster.", autocompletion=completion.clusters)
]
_Owner = Annotated[str | None, typer.Option("--owner", help="That of this owner.", autocompletion=completion.owners)]


@app.callback()
def show(
    context: typer.Context,
    owner: ByOwner = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help=AT_MOST)] = 50,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show what waits, and why; pause and resume.

    Whoever has waited longest comes first. A reason that is cut is told in full by `rmcs explain ID`, or with -o json.
    """
    if context.invoked_subcommand is not None:
        if (owner, limit, output, address) != (None, 50, Format.table, None):
            raise typer.BadParameter(f"write options of {context.invoked_subcommand} behind it.")
        return
    waiting = connect(address).get(path_of("queue"), owner=owner, limit=limit)
    emit(waiting, output, lambda: queue_picture(waiting, time.time()))


@app.command(context_settings=_WITH_A_NAME)
def pause(
    context: typer.Context,
    cluster: _Cluster = None,
    owner: _Owner = None,
    reason: Reason = "",
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Pause the queue of a cluster, or of an owner.

    Nothing new of it starts; what runs goes on.
    """
    what, which = _one_of(cluster, owner, context.args)
    _order(address, output, (what, which, "pause"), {"reason": reason}, "is paused", "is paused already")


@app.command(context_settings=_WITH_A_NAME)
def resume(
    context: typer.Context,
    cluster: _Cluster = None,
    owner: _Owner = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Let the paused queue of a cluster, or of an owner, go on."""
    what, which = _one_of(cluster, owner, context.args)
    _order(address, output, (what, which, "resume"), {}, "goes on", "was not paused")


def queue_picture(waiting: dict[str, Any], now: float) -> Group | str:
    """How many wait, and those that have waited longest."""
    if not waiting["depth"]:
        return "Nothing waits."
    from rich.console import Group

    return Group(depth_line(waiting), item_tables.waiting_table(waiting["waiting"], now))


def depth_line(waiting: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in waiting["kinds"].items())
    return f"{waiting['depth']} wait{'s' if waiting['depth'] == 1 else ''}: {kinds}" if kinds else "Nothing waits."


def _one_of(cluster: str | None, owner: str | None, more: list[str]) -> tuple[str, str]:
    if more:
        name = more[0]
        raise typer.BadParameter(f"is {name} a cluster, or an owner? Write --cluster {name}, or --owner {name}.")
    if cluster is not None and owner is None:
        return "cluster", cluster
    if owner is not None and cluster is None:
        return "owner", owner
    raise typer.BadParameter("give either --cluster or --owner.")


def _order(
    address: str | None, output: Format, words: tuple[str, str, str], said: dict[str, Any], done: str, already: str
) -> None:
    what, name, _ = words
    answer = connect(address).order(path_of("queue", *words), said)
    say(f"the queue of {what} {name} {done if answer['changed'] else already}")
    if output is not Format.table:
        emit(answer, output, str)

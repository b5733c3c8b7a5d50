"""`rmcs queue`: the waiting items and why they wait; pause and resume the queue of a cluster or an owner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import ByOwner, Reason
from ray_multicluster_scheduler.cli.layout.item_tables import waiting_table
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect

if TYPE_CHECKING:
    from rich.console import Group

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
_ALLOW_NAME = {"allow_extra_args": True}
"""A name alone may be a cluster or an owner, so the error asks which."""
_Cluster = Annotated[
    str | None, typer.Option("--cluster", help="The queue of this cluster.", autocompletion=completion.clusters)
]
_Owner = Annotated[
    str | None, typer.Option("--owner", help="The queue of this owner.", autocompletion=completion.owners)
]


@app.callback()
def show(
    context: typer.Context,
    owner: ByOwner = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 50,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show what waits, and why; pause and resume queues.

    The next ones come first, those without a position last. `rmcs explain ID` and -o json print reasons in full.
    """
    if context.invoked_subcommand is not None:
        if (owner, limit, output, address) != (None, 50, Format.table, None):
            raise typer.BadParameter(f"write options of {context.invoked_subcommand} behind it.")
        return
    waiting = connect(address).get(api_path("queue"), owner=owner, limit=limit, order="position")
    emit(waiting, output, lambda: queue_overview(waiting, time.time()))


@app.command(context_settings=_ALLOW_NAME)
def pause(
    context: typer.Context,
    cluster: _Cluster = None,
    owner: _Owner = None,
    reason: Reason = "",
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Pause the queue of a cluster, or of an owner.

    Nothing new starts; running items continue.
    """
    what, which = _one_of(cluster, owner, context.args)
    _change(address, output, (what, which, "pause"), {"reason": reason}, "is paused", "is paused already")


@app.command(context_settings=_ALLOW_NAME)
def resume(
    context: typer.Context,
    cluster: _Cluster = None,
    owner: _Owner = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Resume the paused queue of a cluster, or of an owner."""
    what, which = _one_of(cluster, owner, context.args)
    _change(address, output, (what, which, "resume"), {}, "is resumed", "was not paused")


def queue_overview(waiting: dict[str, Any], now: float) -> Group | str:
    """The number of waiting items, and the next ones."""
    if not waiting["depth"]:
        return "Nothing waits."
    from rich.console import Group

    return Group(depth_line(waiting), waiting_table(waiting["waiting"], now))


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


def _change(
    address: str | None, output: Format, path: tuple[str, str, str], body: dict[str, Any], done: str, already: str
) -> None:
    what, name, _ = path
    answer = connect(address).change(api_path("queue", *path), body)
    notify(f"the queue of {what} {name} {done if answer['changed'] else already}")
    if output is not Format.table:
        emit(answer, output, str)

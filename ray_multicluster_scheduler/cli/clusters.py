"""`rmcs clusters`: the fleet at a glance, asked now; a cluster that does not answer says why.

Its subcommands are for operators: they tell the programs that run now, and `apply` a service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.apply import apply
from ray_multicluster_scheduler.cli.output import Format, Output, emit, plain_table
from ray_multicluster_scheduler.common.line_text import escaped

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

UNKNOWN = "–"
GIB = 1024**3
TITLES = ("CLUSTER", "STATE", "CARRIER", "NODES", "CPU", "MEMORY GiB", "GPU", "TAGS", "RAY", "PYTHON")


app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.command()(apply)


@app.callback()
def show(
    context: typer.Context,
    output: Output = Format.table,
    config: Annotated[
        Path | None, typer.Option("--config", help="A clusters.yaml; default: looked for as the library does.")
    ] = None,
) -> None:
    """Show the fleet: state, carrier, load, tags and versions of each cluster."""
    if context.invoked_subcommand is not None:
        if config is not None or output is not Format.table:
            raise typer.BadParameter(
                f"{context.invoked_subcommand} tells programs that run now: -o and --config are not for it."
            )
        return
    from ray_multicluster_scheduler import UnifiedScheduler

    with UnifiedScheduler(config=config) as scheduler:
        rows = scheduler.list_clusters(refresh=True)
    emit(list(rows), output, lambda: _picture(rows))


@app.command()
def drain(name: Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")]) -> None:
    """Let nothing new be sent there.

    Your programs that run now are told; what runs there goes on. Do it again to see what is still there.
    """
    from ray_multicluster_scheduler.cli.cluster_orders import named, order

    def told(items: Sequence[str]) -> str:
        return f"{named(items, 'is', 'are')} still there" if items else "nothing is there any more"

    order(name, {"drain": name}, "takes no new work", told)


@app.command()
def uncordon(name: Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")]) -> None:
    """The end of drain."""
    from ray_multicluster_scheduler.cli.cluster_orders import named, order

    def told(items: Sequence[str]) -> str:
        return f"{named(items, 'is', 'are')} there" if items else "nothing is there"

    order(name, {"uncordon": name}, "is not cordoned any more", told)


@app.command("declare-dead")
def declare_dead(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for those who ask later.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Although it seems to be alive. Drain it too, or it is used again at once.")
    ] = False,
) -> None:
    """Say that a cluster is dead.

    Your programs that run now are told: what may be repeated goes elsewhere, the rest fails. A cluster that answers is
    refused.
    """
    from ray_multicluster_scheduler.cli.cluster_orders import named, order

    def told(items: Sequence[str]) -> str:
        return f"{named(items, 'was', 'were')} there (see `rmcs explain ID`)" if items else "nothing was there"

    order(name, {"declare_dead": name, "reason": reason, "force": force}, "is taken for dead", told)


def _picture(rows: Sequence[Mapping[str, Any]]) -> Group:
    """The table, and what is wrong with each."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        fleet_table(rows), *(Text(escaped(f"{row['name']}: {row['sentence']}")) for row in rows if row.get("sentence"))
    )


def fleet_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per cluster; what is not known is shown as such, never as zero."""
    return plain_table(TITLES, [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(row["name"]),
        _known(row.get("state")),
        _known(row.get("carrier")),
        _known(row.get("nodes")),
        load(row, "CPU"),
        load(row, "memory", GIB),
        load(row, "GPU"),
        ",".join(row.get("tags") or ()) or UNKNOWN,
        _known(row.get("ray_version")),
        _known(row.get("python_version")),
    )


def _known(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def load(row: Mapping[str, Any], name: str, unit: float = 1.0) -> str:
    """``used/total``; the used part is unknown where the source cannot tell what is free."""
    total, free = row.get("total"), row.get("free")
    if total is None:
        return UNKNOWN
    has = total.get(name, 0.0) / unit
    if free is None:
        return f"?/{has:.3g}"
    return f"{max(0.0, has - free.get(name, 0.0) / unit):.3g}/{has:.3g}"

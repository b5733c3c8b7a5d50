"""`rmcs actor`: the actors of a service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import Reason
from ray_multicluster_scheduler.cli.arguments.selectors import UNFINISHED, find_several
from ray_multicluster_scheduler.cli.layout import item_tables
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit_list
from ray_multicluster_scheduler.cli.service.client import Address, connect, path_of
from ray_multicluster_scheduler.cli.service.items import each

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and kill actors.")


@app.command("list")
def list_actors(output: Output = Format.table, address: Address = None) -> None:
    """List actors that live, or did lately; oldest first."""
    rows = connect(address).get(path_of("actors"))["actors"]
    emit_list(rows, output, item_tables.actors_table, "no actor lives, or did lately")


@app.command()
def kill(
    actor_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID",
            help="Ids, beginnings of ids, names, `last`, or `all` that live.",
            autocompletion=completion.ids("actor", states=",".join(UNFINISHED), words=("last", "all")),
        ),
    ],
    reason: Reason = "",
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Kill actors, also detached ones."""
    service = connect(address)
    names = {row["name"]: row["id"] for row in service.get(path_of("actors"))["actors"] if row["state"] in UNFINISHED}
    found = find_several(service, [names.get(one, one) for one in actor_ids], "actor")
    said = {"reason": reason, "force": True}
    each(found, lambda one: service.order(path_of("items", one, "cancel"), said), output, _killed)


def _killed(answer: dict[str, Any]) -> str:
    return "was killed" if answer["changed"] else f"is over already: {answer['state']}"

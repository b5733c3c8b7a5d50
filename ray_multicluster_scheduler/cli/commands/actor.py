"""`rmcs actor`: the actors of a service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments.options import Reason, items_argument
from ray_multicluster_scheduler.cli.arguments.selectors import UNFINISHED, find_items
from ray_multicluster_scheduler.cli.layout.item_tables import actors_table
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit_list
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect
from ray_multicluster_scheduler.cli.service.items import change_each

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and kill actors.")


@app.command("list")
def list_actors(output: Output = Format.table, address: Address = None) -> None:
    """List actors that are alive, or were lately; oldest first."""
    rows = connect(address).get(api_path("actors"))["actors"]
    emit_list(rows, output, actors_table, "no actor is alive, or was lately")


@app.command()
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
    change_each(found, lambda one: service.change(api_path("items", one, "cancel"), body), output, _kill_outcome)


def _kill_outcome(answer: dict[str, Any]) -> str:
    return "was killed" if answer["changed"] else f"is over already: {answer['state']}"

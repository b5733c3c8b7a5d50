"""`rmcs status`: an overview of clusters and queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.app.client_api.remote.service_errors import not_ready
from ray_multicluster_scheduler.cli.arguments.options import MAX_INTERVAL_S
from ray_multicluster_scheduler.cli.commands.queue import depth_line
from ray_multicluster_scheduler.cli.layout.cluster_tables import load_table
from ray_multicluster_scheduler.cli.layout.item_tables import waiting_table
from ray_multicluster_scheduler.cli.layout.output import (
    Format,
    Output,
    as_text,
    console,
    emit,
    exit_on_signals,
    is_terminal,
)
from ray_multicluster_scheduler.cli.layout.table import MAX_SENTENCE
from ray_multicluster_scheduler.cli.service.client import Address, Service, api_path, connect
from ray_multicluster_scheduler.cli.service.cluster_queries import current_clusters
from ray_multicluster_scheduler.cli.service.item_wait import away_message, retry_while_away
from ray_multicluster_scheduler.common.control_characters import escaped
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

if TYPE_CHECKING:
    from rich.console import Group

_SHOWN = 5


def status(
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Refresh it until Ctrl+C.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, max=MAX_INTERVAL_S, help="Seconds between two refreshes.")
    ] = 2.0,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show clusters and queue at a glance.

    CPU, memory and GPU are shown as used/total.
    """
    service = connect(address)
    if watch:
        _watch(service, every, output)
        return
    fetched = fetch_status(service)
    emit(fetched, output, lambda: status_overview(fetched, time.time()))


def fetch_status(service: Service) -> dict[str, Any]:
    """The data of the overview."""
    about = service.get(api_path("fleet"))
    return {
        "address": service.address,
        "version": about["version"],
        "user": about["you"]["user"],
        "not_ready": about.get("not_ready"),  # missing in answers of an older version
        "clusters": current_clusters(service),
        "queue": service.get(api_path("queue"), limit=_SHOWN, order="position"),
    }


def status_overview(fetched: dict[str, Any], now: float, problem: str = "") -> Group:
    """``problem``: why the shown data is not current; empty if it is."""
    from rich.console import Group
    from rich.text import Text

    queue, clusters = fetched["queue"], fetched["clusters"]
    placed = sum(row["items"] for row in clusters)
    parts: list[Any] = [
        Text(f"rmcs {fetched['version']} at {fetched['address']}", style="bold"),
        "",
        load_table(clusters, drop=("NODES", "GPU", "MEMORY GiB"), wanted={"WHY": 24}, most={"WHY": MAX_SENTENCE}),
        "",
        f"{placed} {'is' if placed == 1 else 'are'} on clusters. {depth_line(queue)}",
    ]
    if fetched.get("not_ready"):
        parts[1:1] = [Text(escaped(f"The service {not_ready(fetched['not_ready'])}."), style="yellow")]
    if problem:
        parts[1:1] = [Text(escaped(problem), style="red")]
    if queue["waiting"]:
        parts += ["", waiting_table(queue["waiting"][:_SHOWN], now)]
    more = queue["depth"] - min(len(queue["waiting"]), _SHOWN)
    if more > 0 and queue["waiting"]:
        parts.append(f"and {more} more: rmcs queue")
    return Group(*parts)


def _watch(service: Service, every: float, output: Format) -> None:
    """Redraw on a terminal; else print one overview after the other. Waits for a service that is away."""
    fetched = fetch_status(service)  # an error at the start ends the command
    if output is not Format.table or not is_terminal():
        screen = console()
        while True:
            if output is Format.table:
                screen.print(status_overview(fetched, time.time()), "")
            else:
                typer.echo(as_text(fetched, output, compact=True))
            time.sleep(every)
            fetched = retry_while_away(lambda: fetch_status(service), None)
    from rich.live import Live

    problem = ""
    with exit_on_signals(), Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(status_overview(fetched, time.time(), problem), refresh=True)
            time.sleep(every)
            try:
                fetched, problem = fetch_status(service), ""
            except ServiceUnavailableError as error:
                problem = away_message(error)

"""`rmcs status`: fleet and queue at a glance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.app.client_api.remote.service_errors import not_ready
from ray_multicluster_scheduler.cli.arguments.options import LONGEST_S
from ray_multicluster_scheduler.cli.commands.queue import depth_line
from ray_multicluster_scheduler.cli.layout.item_tables import waiting_table
from ray_multicluster_scheduler.cli.layout.load_table import load_table
from ray_multicluster_scheduler.cli.layout.output import (
    Format,
    Output,
    as_text,
    console,
    emit,
    is_terminal,
)
from ray_multicluster_scheduler.cli.layout.table import MOST_OF_A_SENTENCE
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect, path_of
from ray_multicluster_scheduler.cli.service.item_wait import away_words, patiently
from ray_multicluster_scheduler.cli.service.passive_queries import clusters_now
from ray_multicluster_scheduler.common.control_characters import escaped
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

if TYPE_CHECKING:
    from rich.console import Group

_SHOWN = 5


def status(
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Look again and again, until Ctrl+C.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.2, max=LONGEST_S, help="Seconds between two looks.")] = 2.0,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show clusters and queue at a glance.

    Of CPU, memory and GPU: what is used of what there is.
    """
    service = connect(address)
    if watch:
        _watch(service, every, output)
        return
    now = look(service)
    emit(now, output, lambda: status_picture(now, time.time()))


def look(service: Service) -> dict[str, Any]:
    """What there is to see now."""
    about = service.get(path_of("fleet"))
    return {
        "address": service.address,
        "version": about["version"],
        "user": about["you"]["user"],
        "not_ready": about.get("not_ready"),  # one of another version may not tell
        "clusters": clusters_now(service),
        "queue": service.get(path_of("queue"), limit=_SHOWN),
    }


def status_picture(seen: dict[str, Any], now: float, trouble: str = "") -> Group:
    """``trouble``: why nothing newer was seen."""
    from rich.console import Group
    from rich.text import Text

    queue, clusters = seen["queue"], seen["clusters"]
    there = sum(row["items"] for row in clusters)
    parts: list[Any] = [
        Text(f"rmcs {seen['version']} at {seen['address']}", style="bold"),
        "",
        load_table(
            clusters,
            drop=("NODES", "GPU", "MEMORY GiB"),
            wanted={"WHY": 24},
            most={"WHY": MOST_OF_A_SENTENCE},
        ),
        "",
        f"{there} {'is' if there == 1 else 'are'} on clusters. {depth_line(queue)}",
    ]
    if seen.get("not_ready"):
        parts[1:1] = [Text(escaped(f"The service {not_ready(seen['not_ready'])}."), style="yellow")]
    if trouble:
        parts[1:1] = [Text(escaped(trouble), style="red")]
    if queue["waiting"]:
        parts += ["", waiting_table(queue["waiting"][:_SHOWN], now)]
    more = queue["depth"] - min(len(queue["waiting"]), _SHOWN)
    if more > 0 and queue["waiting"]:
        parts.append(f"and {more} more: rmcs queue")
    return Group(*parts)


def _watch(service: Service, every: float, output: Format) -> None:
    """On a terminal one picture that changes; else one after the other, as JSON one line each. A service that goes away
    while it is watched is waited for."""
    seen = look(service)  # what is wrong from the beginning ends it
    if output is not Format.table or not is_terminal():
        screen = console()
        while True:
            if output is Format.table:
                screen.print(status_picture(seen, time.time()), "")
            else:
                typer.echo(as_text(seen, output, compact=True))
            time.sleep(every)
            seen = patiently(lambda: look(service), None)
    from rich.live import Live

    from ray_multicluster_scheduler.cli.terminal.terminal_restore import ended_well

    trouble = ""
    with ended_well(), Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(status_picture(seen, time.time(), trouble), refresh=True)
            time.sleep(every)
            try:
                seen, trouble = look(service), ""
            except ServiceUnavailableError as error:
                trouble = away_words(error)

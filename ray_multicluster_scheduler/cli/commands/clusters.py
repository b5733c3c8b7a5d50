"""`rmcs clusters`: the fleet at a glance, asked now; a cluster that does not answer says why.

Its subcommands ask and steer a service; those that steer tell the programs that run now if there is none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.app.client_api.cluster_rows import pause_words
from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments.options import Config
from ray_multicluster_scheduler.cli.commands import cluster_steering
from ray_multicluster_scheduler.cli.commands.cluster_steering import Name
from ray_multicluster_scheduler.cli.commands.clusters_apply import apply
from ray_multicluster_scheduler.cli.layout.cluster_load import GIB, load, load_with_its_age, nodes
from ray_multicluster_scheduler.cli.layout.output import (
    Format,
    Output,
    cluster_state_cell,
    emit,
    emit_words,
    facts_table,
)
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.layout.times import UNKNOWN, ago
from ray_multicluster_scheduler.cli.service.client import Address, connect, find, path_of
from ray_multicluster_scheduler.common.control_characters import escaped

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Group
    from rich.table import Table

TITLES = ("CLUSTER", "STATE", "CARRIER", "NODES", "CPU", "MEMORY GiB", "GPU", "TAGS", "RAY", "PYTHON")


app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.command()(apply)
app.command()(cluster_steering.cordon)
app.command()(cluster_steering.drain)
app.command()(cluster_steering.uncordon)
app.command("declare-dead")(cluster_steering.declare_dead)


@app.callback()
def show(
    context: typer.Context,
    config: Config = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show the clusters, and take them in and out of service.

    State, carrier, load (what is used of what there is), tags and versions of each, asked now.
    """
    if context.invoked_subcommand is not None:
        if (config, output, address) != (None, Format.table, None):
            raise typer.BadParameter(
                f"write options of {context.invoked_subcommand} behind it; --config is not for it."
            )
        return
    rows = _rows(address, config, refresh=True)
    emit(rows, output, lambda: clusters_picture(rows))


def _rows(address: str | None, config: Path | None, *, refresh: bool) -> list[Mapping[str, Any]]:
    """Of a service, if there is one and no file was named; else asked from here."""
    if config is None and find(address) is not None:
        return list(connect(address).get(path_of("clusters"), refresh=refresh)["clusters"])
    from ray_multicluster_scheduler import UnifiedScheduler

    with UnifiedScheduler(config=config, address=address) as scheduler:
        return list(scheduler.list_clusters(refresh=refresh))


@app.command("list")
def list_clusters(
    refresh: Annotated[
        bool, typer.Option("--refresh/--no-refresh", help="Ask every cluster first; else as they were last seen.")
    ] = True,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """List the clusters of a service.

    Without a service, as `rmcs clusters` does.
    """
    rows = _rows(address, None, refresh=refresh)
    emit(rows, output, lambda: clusters_picture(rows))


@app.command("show")
def show_one(
    name: Name,
    refresh: Annotated[
        bool, typer.Option("--refresh/--no-refresh", help="Ask it first; else as it was last seen.")
    ] = True,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show all that a service knows of a cluster."""
    told = connect(address).get(path_of("clusters", name), refresh=refresh)
    emit(told, output, lambda: cluster_picture(told, time.time()))


@app.command()
def check(name: Name, output: Output = Format.table, address: Address = None) -> None:
    """Ask a cluster now whether it takes work.

    Exit code 0 if it does, 100 if not.
    """
    answer = connect(address).post(path_of("clusters", name, "check"))
    emit_words(answer, output, lambda: check_words(answer))
    if why_not(answer) is not None:
        raise typer.Exit(exit_codes.FAILED)


def why_not(answer: Mapping[str, Any]) -> tuple[str, str] | None:
    """Code and sentence of why a cluster that was checked takes no work; None: it does, if only of some kinds."""
    cluster = answer["cluster"]
    troubles = {one["concerns"]: (str(one["code"]), str(one["sentence"])) for one in cluster["troubles"]}
    if "everything" in troubles:
        return troubles["everything"]
    if not answer["answered"]:
        return "CLUSTER_UNREACHABLE", str(answer["reason"])
    if cluster["cordoned"]:
        return "CORDONED", f"{cluster['name']} is cordoned: `rmcs clusters uncordon {cluster['name']}`"
    if cluster["paused"] is not None:
        because = f": {cluster['paused']}" if cluster["paused"] else ""
        return "QUEUE_PAUSED", f"the queue of {cluster['name']} is paused{because}"
    if {"jobs", "tasks and actors"} <= troubles.keys():
        return troubles["tasks and actors"]
    return None


def check_words(answer: Mapping[str, Any]) -> str:
    """Does it take work, and if not, or not all, why?"""
    cluster, why = answer["cluster"], why_not(answer)
    if why is not None:
        return f"{cluster['name']} takes no work: {why[0]}, {why[1]}"
    but = [f"but not {one['concerns']}: {one['code']}, {one['sentence']}" for one in cluster["troubles"]]
    return "\n".join([f"{cluster['name']} takes work", *but])


def cluster_picture(told: Mapping[str, Any], now: float) -> Table:
    """What people ask first of one cluster; -o json has it all."""
    return facts_table(_facts(told, now))


def _facts(told: Mapping[str, Any], now: float) -> dict[str, object]:
    breaker = told["breaker"]
    troubles = [f"{one['concerns']}: {one['code']}, {one['sentence']}" for one in told["troubles"]]
    return {
        "name": told["name"],
        "state": told["state"],
        "why": told["sentence"],
        "cordoned": None if not told["cordoned"] else "yes, and empty" if told["drained"] else "yes, and not empty yet",
        "paused": None if told["paused"] is None else told["paused"] or "yes",
        "troubles": "\n".join(troubles) if len(troubles) > 1 else None,
        "notes": "\n".join(told.get("notes", ())),
        "breaker": None
        if breaker["state"] == "CLOSED"
        else f"{breaker['state']} after {breaker['failures_in_a_row']} failures in a row, asked again "
        + ago(breaker["half_open_at"], now),
        "dashboard": told["dashboard"],
        "head": told["head_address"],
        "carrier": told["carrier"],
        "tasks by": told["tasks_by"],
        "link": told["link"],
        "nodes": told["nodes"],
        "CPU": load_with_its_age(told, "CPU", 1.0, now),
        "memory GiB": load_with_its_age(told, "memory", GIB, now),
        "GPU": load_with_its_age(told, "GPU", 1.0, now),
        "items": f"{told['in_flight']} there, {told['ahead']} sent ahead",
        "jobs": told["running_jobs"],
        "actors": told["ready_actors"],
        "room kept for": told["kept_for"],
        "tags": ", ".join(told["tags"]),
        "Ray": told["ray_version"],
        "Python": told["python_version"],
        "system": " ".join(filter(None, (told["os"], told["arch"]))),
        "last seen": ago(told["snapshot_at"], now),
    }


def clusters_picture(rows: Sequence[Mapping[str, Any]]) -> Group:
    """The table, whose queue is paused, and what is wrong with each."""
    from rich.console import Group
    from rich.text import Text

    said = (_named(row, one) for row in rows for one in (pause_words(row), str(row.get("sentence") or "")) if one)
    return Group(fleet_table(rows), *(Text(escaped(one)) for one in said))


def _named(row: Mapping[str, Any], said: str) -> str:
    """What is said of a cluster, which has its name in it."""
    name = str(row["name"])
    return said if said.startswith((f"{name} ", f"{name}:")) else f"{name}: {said}"


def fleet_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    """One row per cluster; what is not known is shown as such, never as zero. Where there is little room, that goes
    which `rmcs clusters show` tells, too."""
    return FittingTable(
        TITLES,
        [_cells(row) for row in rows],
        cut=("TAGS",),
        drop=("PYTHON", "RAY", "CARRIER", "NODES", "TAGS", "GPU", "MEMORY GiB"),
    )


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["name"],
        UNKNOWN if row.get("state") is None else cluster_state_cell(row),
        _known(row.get("carrier")),
        nodes(row),
        load(row, "CPU"),
        load(row, "memory", GIB),
        load(row, "GPU"),
        ",".join(row.get("tags") or ()) or UNKNOWN,
        _known(row.get("ray_version")),
        _known(row.get("python_version")),
    )


def _known(value: object) -> str:
    return UNKNOWN if value is None else str(value)

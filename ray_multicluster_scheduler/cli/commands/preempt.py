"""`rmcs preempt --dry-run`: which running items would give way to a waiting item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.selectors import find_item
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, facts_table
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.layout.times import duration
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect

if TYPE_CHECKING:
    from rich.console import Group

_VICTIMS = ("GIVES WAY", "REASON", "PRIORITY", "LOST WORK")
_CANDIDATES = ("CANDIDATE", "CLUSTER", "RANK", "PRIORITY", "LOST WORK", "CODE", "WHY")


def preempt(
    item_id: Annotated[
        str, typer.Argument(metavar="ID", help="A waiting item, or `last`.", autocompletion=completion.ids())
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Required: nothing is stopped.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show which running items would give way to a waiting item.

    Nothing is stopped: the scheduler preempts by itself, for items that wait.
    """
    if not dry_run:
        raise typer.BadParameter("The scheduler preempts by itself, by the rules of `preemption:`; give --dry-run.")
    service = connect(address)
    report = service.get(api_path("items", find_item(service, item_id), "preemption"))
    emit(report, output, lambda: preemption_overview(report))


def preemption_overview(report: Mapping[str, Any]) -> Group:
    """The plan for an item, or why there is none, and the candidates."""
    from rich.console import Group

    facts = {"item": report["id"], "state": report["state"], "code": report["code"], "plan": report["sentence"]}
    parts: list[Any] = [facts_table(facts)]
    if report["victims"]:
        victims = [
            (one["id"], one["reason"], f"{one['priority']:g}", duration(one["lost_s"])) for one in report["victims"]
        ]
        parts += ["", FittingTable(_VICTIMS, victims, cut=("GIVES WAY",))]
    if report["candidates"]:
        rows = [
            (
                one["id"],
                one["cluster"],
                "–" if one["rank"] is None else str(one["rank"]),
                f"{one['priority']:g}",
                duration(one["lost_s"]),
                one["code"],
                one["sentence"],
            )
            for one in report["candidates"]
        ]
        parts += ["", FittingTable(_CANDIDATES, rows, cut=("WHY",), drop=("WHY", "LOST WORK", "PRIORITY"))]
    if report["total"] > len(report["candidates"]):
        parts.append(f"and {report['total'] - len(report['candidates'])} more")
    return Group(*parts)

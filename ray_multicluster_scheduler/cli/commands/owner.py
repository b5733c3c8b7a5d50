"""`rmcs owner`: what owners have in a service, and what they may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list
from ray_multicluster_scheduler.cli.layout.table import MOST_OF_A_SENTENCE, FittingTable
from ray_multicluster_scheduler.cli.service.client import Address, connect, path_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List the owners of items, and set their limits.")
NAMES = ("weight", "max_queued", "max_running", "max_gpus", "max_priority")
TITLES = ("OWNER", "WAITING", "RUNNING", *(name.replace("_", " ").upper() for name in NAMES), "LIMITS FROM", "PAUSED")
_WHOLE = ("max_queued", "max_running", "max_priority")
_Name = Annotated[str, typer.Argument(metavar="OWNER", help="The name of an owner.", autocompletion=completion.owners)]


@app.command("list")
def list_owners(output: Output = Format.table, address: Address = None) -> None:
    """List all who have items that are not over, or limits."""
    rows = connect(address).get(path_of("owners"))["owners"]
    emit_list(rows, output, owners_table, "nobody has items that are not over, or limits")


@app.command()
def show(owner: _Name, output: Output = Format.table, address: Address = None) -> None:
    """Show what an owner has, and may have."""
    row = connect(address).get(path_of("owners", owner))
    _show([row], row, output)


@app.command("set")
def set_limits(
    owner: _Name,
    weight: Annotated[str | None, typer.Option("--weight", help="Its share at equal priority.")] = None,
    max_queued: Annotated[str | None, typer.Option("--max-queued", help="So many items of it may wait.")] = None,
    max_running: Annotated[
        str | None, typer.Option("--max-running", help="So many items of it may be on clusters.")
    ] = None,
    max_gpus: Annotated[str | None, typer.Option("--max-gpus", help="So many GPUs it may hold there.")] = None,
    max_priority: Annotated[str | None, typer.Option("--max-priority", help="The highest that it may ask for.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Go back to the limits in the settings.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Set limits of an owner.

    Those that are not named stay as they are, and `none` lifts one. They hold at once, and over restarts of the
    service, instead of those in its settings. What runs goes on.
    """
    texts = dict(zip(NAMES, (weight, max_queued, max_running, max_gpus, max_priority), strict=True))
    given = {name: _limit(name, text) for name, text in texts.items() if text is not None}
    if reset == bool(given):
        raise typer.BadParameter("Name limits, such as --max-running 5, or --reset to end them; not both.")
    service = connect(address)
    if reset:
        row = service.delete(path_of("owners", owner))
    else:
        rows = service.get(path_of("owners"))["owners"]
        now: dict[str, Any] = next((row["limits"] for row in rows if row["owner"] == owner), {})
        row = service.put(path_of("owners", owner), {**now, **given})
    _show([row], row, output)


def _limit(name: str, text: str) -> float | None:
    """A number, or None for no limit."""
    if text == "none" and name != "weight":
        return None
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        kind = "a whole number, or none" if name in _WHOLE else "a number" if name == "weight" else "a number, or none"
        option = f"--{name.replace('_', '-')}"
        raise typer.BadParameter(f"{text!r} is not {kind}.", param_hint=option) from None


def _show(rows: list[dict[str, Any]], answer: Any, output: Format) -> None:
    emit(answer, output, lambda: owners_table(rows))


def owners_table(rows: Sequence[dict[str, Any]]) -> FittingTable:
    """Rows of ``/api/v1/owners``. Where there is little room, the limits that are rare go; -o json has all."""
    cells = [_cells(row) for row in rows]
    return FittingTable(
        TITLES,
        cells,
        cut=("OWNER", "PAUSED"),
        drop=("LIMITS FROM", *reversed(TITLES[4:8])),
        most={"PAUSED": MOST_OF_A_SENTENCE},
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    limits = ["–" if row["limits"][name] is None else _short(row["limits"][name]) for name in NAMES]
    paused = "no" if row["paused"] is None else f"yes: {row['paused']}" if row["paused"] else "yes"
    source = "set later" if row["changed"] else "settings"
    return row["owner"] or "–", str(row["waiting"]), str(row["running"]), *limits, source, paused


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"

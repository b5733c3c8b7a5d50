"""`rmcs owner`: the items of each owner in a service, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list
from ray_multicluster_scheduler.cli.layout.table import MAX_SENTENCE, FittingTable
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List the owners of items, and set their limits.")
NAMES = ("weight", "max_queued", "max_running", "max_gpus", "max_priority")
TITLES = ("OWNER", "WAITING", "RUNNING", *(name.replace("_", " ").upper() for name in NAMES), "LIMITS FROM", "PAUSED")
_INTEGERS = ("max_queued", "max_running")
_Name = Annotated[str, typer.Argument(metavar="OWNER", help="The name of an owner.", autocompletion=completion.owners)]


@app.command("list")
def list_owners(output: Output = Format.table, address: Address = None) -> None:
    """List owners with unfinished items, or with limits of their own."""
    rows = connect(address).get(api_path("owners"))["owners"]
    emit_list(rows, output, owners_table, "no owner has unfinished items, or limits")


@app.command()
def show(owner: _Name, output: Output = Format.table, address: Address = None) -> None:
    """Show the items and limits of an owner."""
    row = connect(address).get(api_path("owners", owner))
    emit(row, output, lambda: owners_table([row]))


@app.command("set")
def set_limits(
    owner: _Name,
    weight: Annotated[str | None, typer.Option("--weight", help="Its share at equal priority.")] = None,
    max_queued: Annotated[
        str | None, typer.Option("--max-queued", help="At most so many of its items may wait.")
    ] = None,
    max_running: Annotated[
        str | None, typer.Option("--max-running", help="At most so many of its items may be on clusters.")
    ] = None,
    max_gpus: Annotated[str | None, typer.Option("--max-gpus", help="At most so many GPUs for its items.")] = None,
    max_priority: Annotated[
        str | None, typer.Option("--max-priority", help="The highest priority that it may use.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Use the limits in the settings again.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Set limits of an owner.

    Limits that are not named stay as they are; `none` removes one. They take effect at once, survive restarts of the
    service, and override its settings. Running items are not affected.
    """
    texts = dict(zip(NAMES, (weight, max_queued, max_running, max_gpus, max_priority), strict=True))
    given = {name: _limit(name, text) for name, text in texts.items() if text is not None}
    if reset == bool(given):
        raise typer.BadParameter("Name limits, such as --max-running 5, or --reset to end them; not both.")
    service = connect(address)
    if reset:
        row = service.delete(api_path("owners", owner))
    else:
        rows = service.get(api_path("owners"))["owners"]
        now: dict[str, Any] = next((row["limits"] for row in rows if row["owner"] == owner), {})
        row = service.put(api_path("owners", owner), {**now, **given})
    emit(row, output, lambda: owners_table([row]))


def _limit(name: str, text: str) -> float | None:
    """A number, or None for no limit."""
    if text == "none" and name != "weight":
        return None
    try:
        return int(text) if name in _INTEGERS else float(text)
    except ValueError:
        kind = f"a {'whole ' if name in _INTEGERS else ''}number{'' if name == 'weight' else ', or none'}"
        raise typer.BadParameter(f"{text!r} is not {kind}.", param_hint=f"--{name.replace('_', '-')}") from None


def owners_table(rows: Sequence[dict[str, Any]]) -> FittingTable:
    """Rows of ``/api/v1/owners``."""
    return FittingTable(
        TITLES,
        [_cells(row) for row in rows],
        cut=("OWNER", "PAUSED"),
        drop=("LIMITS FROM", *reversed(TITLES[4:8])),
        most={"PAUSED": MAX_SENTENCE},
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    values = [row["limits"][name] for name in NAMES]
    limits = ["–" if one is None else str(one) if isinstance(one, int) else f"{one:.10g}" for one in values]
    paused = "no" if row["paused"] is None else f"yes: {row['paused']}" if row["paused"] else "yes"
    source = "set later" if row["changed"] else "settings"
    return row["owner"] or "–", str(row["waiting"]), str(row["running"]), *limits, source, paused

"""`rmcs serving`: deployments of a service, and a serving scheduler alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments.lazy_group import LazyCommand, LazyGroup
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, emit_list, notify, state_cell
from ray_multicluster_scheduler.cli.layout.table import MAX_SENTENCE, FittingTable
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect

if TYPE_CHECKING:
    from rich.console import Group as Lines


class Group(LazyGroup):
    """Imports `deploy` only when it runs: its options take longer to define than the other commands run."""

    prefix = "serving "
    lazy_commands = {  # noqa: RUF012 - the base class declares it as a ClassVar
        "deploy": LazyCommand("serving_deploy", "deploy", "Serve a class of a Python file by replicas over the fleet.")
    }


app = typer.Typer(
    cls=Group, no_args_is_help=True, rich_markup_mode=None, help="Serve models: deploy, list, scale and delete them."
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a deployment.")]


@app.command("list")
def list_deployments(output: Output = Format.table, address: Address = None) -> None:
    """List the deployments of a service."""
    rows = connect(address).get(api_path("serving", "deployments"))["deployments"]
    emit_list(rows, output, deployments_table, "nothing is deployed")


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The name of a deployment.")] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show all models and instances, or a deployment.

    Of a replica: where it is, or why it waits, and its queue. ERROR is the relative error of predicted times; WITHIN
    P90 is the part of recent requests that was faster than its stated p90.
    """
    service = connect(address)
    if name is not None:
        found = service.get(api_path("serving", "deployments", name))
        emit(found, output, lambda: deployment_overview(found))
        return
    models = service.get(api_path("serving", "models"))["models"]
    queues = service.get(api_path("serving", "queue", "info"))["queues"]
    emit({"models": models, "instances": queues}, output, lambda: models_overview(models, queues))


@app.command()
def scale(
    name: _Name,
    replicas: Annotated[int, typer.Argument(metavar="REPLICAS", min=0, help="So many replicas in all.")],
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Change the number of replicas of a deployment.

    When there are to be fewer, the newest ones end after their running requests.
    """
    made = connect(address).patch(api_path("serving", "deployments", name), {"replicas": replicas})
    notify(f"{name} will have {replicas} replica{'' if replicas == 1 else 's'}")
    emit(made, output, lambda: name)


@app.command()
def delete(name: _Name, output: Output = Format.table, address: Address = None) -> None:
    """Delete a deployment.

    Its replicas end after their running requests.
    """
    made = connect(address).delete(api_path("serving", "deployments", name))
    notify(f"{name} ends when its {len(made['instances'])} replicas are drained")
    emit(made, output, lambda: name)


@app.command()
def up(
    config: Annotated[
        Path | None, typer.Option("--config", help="A YAML file with instances and settings of serving.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8102,
    state: Annotated[
        Path | None, typer.Option("--state", help="Keep tasks and results in this folder, not only in memory.")
    ] = None,
) -> None:
    """Run a serving scheduler alone, until it is stopped.

    It listens on this machine only. `rmcs up` has one, too, with tokens, deployments and a durable state.
    """
    from ray_multicluster_scheduler.serving.__main__ import main

    given = {"--config": config, "--port": port, "--state": state}
    raise typer.Exit(main([word for name, one in given.items() if one is not None for word in (name, str(one))]))


def deployments_table(rows: Sequence[dict[str, Any]]) -> FittingTable:
    """Rows of ``/api/v1/serving/deployments``."""
    cells = [
        (
            row["name"],
            state_cell(row["state"]),
            f"{row['running']} of {row['replicas']}",
            str(sum(one["length"] for one in row["instances"])),
            row["owner"] or "–",
            row["problem"] or "–",
        )
        for row in rows
    ]
    titles = ("NAME", "STATE", "RUNNING", "REQUESTS", "OWNER", "LAST PROBLEM")
    return FittingTable(titles, cells, cut=("OWNER", "LAST PROBLEM"), most={"LAST PROBLEM": MAX_SENTENCE})


def deployment_overview(row: dict[str, Any]) -> Lines:
    """A deployment, and below it its replicas."""
    from rich.console import Group as Lines

    cells = [
        (
            one["id"],
            state_cell(one["state"]),
            one["cluster"] or "–",
            str(one["length"]),
            f"{one['waiting_time_expect']:.0f} ms",
            _percent(one["relative_error"]),
            _percent(one["within_p90"]),
            one["reason"] or "–",
        )
        for one in row["instances"]
    ]
    titles = ("REPLICA", "STATE", "CLUSTER", "REQUESTS", "WAIT", "ERROR", "WITHIN P90", "REASON")
    replicas = FittingTable(
        titles,
        cells,
        cut=("REASON",),
        drop=("WITHIN P90", "ERROR", "WAIT"),
        wanted={"REASON": 40},
        most={"REASON": MAX_SENTENCE},
    )
    return Lines(deployments_table([row]), *(("", replicas) if cells else ()))


def models_overview(models: Sequence[dict[str, Any]], queues: Sequence[dict[str, Any]]) -> Lines | str:
    """Rows of ``/api/v1/serving/models``, and below them those of ``/api/v1/serving/queue/info``."""
    from rich.console import Group as Lines

    if not models and not queues:
        return "no instance is registered, and no task waits"
    titles = ("MODEL", "STRATEGY", "HEALTHY", "WAITING", "RUNNING")
    model_cells = [
        (
            row["model_name"],
            row["strategy"],
            f"{row['healthy']} of {row['instances']}",
            str(row["waiting"]),
            str(row["running"]),
        )
        for row in models
    ]
    cells = [
        (
            row["address"],
            row["model_name"] or "–",
            "yes" if row["healthy"] else "no",
            str(row["length"]),
            f"{row['waiting_time_expect']:.0f} ± {row['waiting_time_error']:.0f} ms",
            _percent(row["relative_error"]),
            _percent(row["within_p90"]),
        )
        for row in queues
    ]
    names = ("INSTANCE", "MODEL", "HEALTHY", "REQUESTS", "WAIT", "ERROR", "WITHIN P90")
    instances = FittingTable(names, cells, cut=("INSTANCE", "MODEL"), drop=("WITHIN P90", "ERROR", "WAIT"))
    return Lines(FittingTable(titles, model_cells, cut=("MODEL",)), *(("", instances) if cells else ()))


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{part:.0%}"

"""`rmcs config`: is a clusters.yaml right, and by what does a service go?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.options import WHICH_CONFIG
from ray_multicluster_scheduler.cli.output import Format, Output, as_text, emit
from ray_multicluster_scheduler.cli.service import Address, connect, path_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check and show the configuration.")


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=WHICH_CONFIG)] = None,
    output: Output = Format.table,
) -> None:
    """Check a clusters.yaml; nothing is contacted.

    Exit code 2, and what is wrong, if it cannot be used.
    """
    from ray_multicluster_scheduler.control_plane.config import load_config

    found = load_config(file)
    names = [one.name for one in found.clusters]
    said = sorted(found.settings.model_fields_set)
    told = {"source": found.source, "clusters": names, "settings": said}
    settings = f"; settings: {', '.join(said)}" if said else "; all settings as they are by default"
    words = (
        f"{found.source} is right: {len(names)} cluster{'' if len(names) == 1 else 's'} ({', '.join(names)}){settings}"
    )
    emit(told, output, lambda: words)


@app.command()
def show(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Show what would hold with this clusters.yaml, instead of asking a service."),
    ] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show the settings and clusters in force, without secrets."""
    told = connect(address).get(path_of("settings")) if config is None else _of_file(config)
    emit(told, output, lambda: as_text(told, Format.yaml))


@app.command("log-level")
def log_level(
    level: Annotated[
        str | None, typer.Argument(metavar="LEVEL", help="From now on: debug, info, warning or error.")
    ] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show how much a service logs, or change it.

    A change holds until its next start.
    """
    service, path = connect(address), path_of("log-level")
    told = service.get(path) if level is None else service.put(path, {"level": level.upper()})
    emit(told, output, lambda: str(told["level"]))


def _of_file(config: Path) -> dict[str, Any]:
    from ray_multicluster_scheduler.control_plane.admin_api.without_secrets import cluster_shown, settings_shown
    from ray_multicluster_scheduler.control_plane.config import load_config

    found = load_config(config)
    return {
        "settings": settings_shown(found.settings, None),
        "source": found.source,
        "clusters": [cluster_shown(one) for one in found.clusters],
    }

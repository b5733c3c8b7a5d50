"""`rmcs config`: check a clusters.yaml, show the configuration in force, change the log level."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import CONFIG_HELP
from ray_multicluster_scheduler.cli.layout.output import Format, Output, as_text, emit, emit_folded, notify
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect, find_address

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.config import FleetConfig
    from ray_multicluster_scheduler.control_plane.config.config_warnings import ConfigWarning

_VARIABLE = "RMCS_CONFIG"
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check and show the configuration.")


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=CONFIG_HELP)] = None, output: Output = Format.table
) -> None:
    """Check a clusters.yaml; nothing is contacted.

    Exit code 2, and the reason, if it cannot be used. Prints warnings for what is probably a mistake: two names for
    one address, a cluster that takes no jobs, a token that is missing.
    """
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.config_warnings import config_warnings

    found = load_config(file)
    _print_source(found.source, named=file is not None)
    warnings = config_warnings(found.clusters)
    report = {
        "source": found.source,
        "clusters": list(found.names),
        "pools": [one.name for one in found.pools],
        "settings": sorted(found.settings.model_fields_set),
        "warnings": [one.to_dict() for one in warnings],
    }
    emit_folded(report, output, lambda: verdict(found, warnings))


def verdict(found: FleetConfig, warnings: list[ConfigWarning]) -> str:
    """Whether it is valid, and the warnings."""
    keys = sorted(found.settings.model_fields_set)
    count = f"{len(found.names)} cluster{'' if len(found.names) == 1 else 's'} ({', '.join(found.names)})"
    settings = f"settings: {', '.join(keys)}" if keys else "all settings have their defaults"
    pools = f"; pools: {', '.join(one.name for one in found.pools)}" if found.pools else ""
    lines = [f"{found.source} {'is valid, with warnings' if warnings else 'is valid'}: {count}{pools}; {settings}"]
    for one in warnings:
        lines += [f"! {one.sentence}", f"    What to do: {one.fix} (more: rmcs explain {one.code})"]
    return "\n".join(lines)


@app.command()
def show(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Show what would be in force with this clusters.yaml, instead of asking a service."
        ),
    ] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show the settings and clusters in force, without secrets.

    Of a service; without one, what would be in force: of --config, RMCS_CONFIG, or the file that the library would
    find. Its name is printed on stderr.
    """
    if config is None and find_address(address) is not None:
        service = connect(address)
        shown = service.get(api_path("settings"))
        notify(f"the service {service.address} uses {shown['source']}{_other_file_hint(str(shown['source']))}")
    else:
        from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import config_shown
        from ray_multicluster_scheduler.control_plane.config import load_config

        shown = config_shown(load_config(config))
        _print_source(str(shown["source"]), named=config is not None)
    emit(shown, output, lambda: as_text(shown, Format.yaml))


def _print_source(source: str, *, named: bool) -> None:
    """Print which file was read."""
    why = "" if named or not os.environ.get(_VARIABLE) else f", which {_VARIABLE} names"
    notify(f"read {source}{why}")


def _other_file_hint(source: str) -> str:
    """A hint if RMCS_CONFIG names another file than that of the service."""
    from ray_multicluster_scheduler.control_plane.config.home import expanded

    named = os.environ.get(_VARIABLE)
    if not named or expanded(named, _VARIABLE).resolve() == Path(source).resolve():
        return ""
    return f"; {_VARIABLE} names {named}, which is shown with --config {named}"


@app.command("log-level")
def log_level(
    level: Annotated[
        str | None,
        typer.Argument(
            metavar="LEVEL",
            help="The new level: debug, info, warning or error.",
            autocompletion=completion.words("debug", "info", "warning", "error"),
        ),
    ] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show the log level of a service, or change it.

    A change lasts until its next start.
    """
    service, path = connect(address), api_path("log-level")
    answer = service.get(path) if level is None else service.put(path, {"level": level.upper()})
    emit(answer, output, lambda: str(answer["level"]))

"""`rmcs config`: is a clusters.yaml right, and by what does a service go?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import WHICH_CONFIG
from ray_multicluster_scheduler.cli.layout.output import Format, Output, as_text, emit, emit_words, say
from ray_multicluster_scheduler.cli.service.client import Address, connect, find, path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.config import FleetConfig
    from ray_multicluster_scheduler.control_plane.config.config_warnings import Doubt

_VARIABLE = "RMCS_CONFIG"
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check and show the configuration.")


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=WHICH_CONFIG)] = None,
    output: Output = Format.table,
) -> None:
    """Check a clusters.yaml; nothing is contacted.

    Exit code 2, and what is wrong, if it cannot be used. What can be used and is hardly meant is told, too: two names
    for one address, a cluster that takes no jobs, a token that is not there.
    """
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.config_warnings import doubts

    found = load_config(file)
    _say_source(found.source, named=file is not None)
    odd = doubts(found.clusters)
    told = {
        "source": found.source,
        "clusters": list(found.names),
        "settings": sorted(found.settings.model_fields_set),
        "warnings": [one.to_dict() for one in odd],
    }
    emit_words(told, output, lambda: verdict(found, odd))


def verdict(found: FleetConfig, odd: list[Doubt]) -> str:
    """Is it right, or what is odd about it?"""
    said = sorted(found.settings.model_fields_set)
    many = f"{len(found.names)} cluster{'' if len(found.names) == 1 else 's'} ({', '.join(found.names)})"
    settings = f"settings: {', '.join(said)}" if said else "all settings as they are by default"
    lines = [f"{found.source} {'can be used' if odd else 'is right'}: {many}; {settings}"]
    for one in odd:
        lines += [f"! {one.sentence}", f"    What to do: {one.mend} (more: rmcs explain {one.code})"]
    return "\n".join(lines)


@app.command()
def show(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Show what would hold with this clusters.yaml, instead of asking a service."),
    ] = None,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Show the settings and clusters in force, without secrets.

    Of a service; without one, what would hold: of --config, RMCS_CONFIG, or a file that is found as the library does.
    Which that was is said on stderr.
    """
    if config is None and find(address) is not None:
        service = connect(address)
        told = service.get(path_of("settings"))
        say(f"the service {service.address} goes by {told['source']}{_another(str(told['source']))}")
    else:
        from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import config_shown
        from ray_multicluster_scheduler.control_plane.config import load_config

        told = config_shown(load_config(config))
        _say_source(str(told["source"]), named=config is not None)
    emit(told, output, lambda: as_text(told, Format.yaml))


def _say_source(source: str, *, named: bool) -> None:
    """Whoever has several files wants to know which of them it is about."""
    why = "" if named or not os.environ.get(_VARIABLE) else f", which {_VARIABLE} names"
    say(f"read {source}{why}")


def _another(source: str) -> str:
    """A service is asked although RMCS_CONFIG names another file: that has to be seen."""
    from ray_multicluster_scheduler.control_plane.config.home import expanded

    said = os.environ.get(_VARIABLE)
    if not said or expanded(said, _VARIABLE).resolve() == Path(source).resolve():
        return ""
    return f"; {_VARIABLE} names {said}, which is shown with --config {said}"


@app.command("log-level")
def log_level(
    level: Annotated[
        str | None,
        typer.Argument(
            metavar="LEVEL",
            help="From now on: debug, info, warning or error.",
            autocompletion=completion.words("debug", "info", "warning", "error"),
        ),
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

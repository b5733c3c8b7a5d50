"""The root of `rmcs`: every command is one module of this folder and is listed here."""

from __future__ import annotations

from typing import Annotated

import typer

from ray_multicluster_scheduler.cli import (
    clusters,
    demo,
    explain,
    fleet,
    owner,
    plan,
    replay,
    simulate,
    token,
    trace,
    up,
)

app = typer.Typer(
    name="rmcs",
    help="One control plane above many Ray clusters.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: half the time, and good to grep
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("down")(up.down)
app.command("plan")(plan.plan)
app.command("explain")(explain.explain)
app.command("simulate")(simulate.simulate)
app.command("demo")(demo.demo)
app.command("replay")(replay.replay)
app.command("trace")(trace.trace)
app.add_typer(clusters.app, name="clusters")
app.add_typer(fleet.app, name="fleet")
app.add_typer(token.app, name="token")
app.add_typer(owner.app, name="owner")


@app.callback()
def options(
    verbose: Annotated[int, typer.Option("-v", "--verbose", count=True, help="Log to stderr; twice: in detail.")] = 0,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines (implies -v).")] = False,
) -> None:
    if verbose or log_json:
        from ray_multicluster_scheduler.common.logging import configure

        configure("DEBUG" if verbose > 1 else "INFO", json=log_json)


@app.command()
def version() -> None:
    """Print the version."""
    from ray_multicluster_scheduler import __version__

    typer.echo(__version__)

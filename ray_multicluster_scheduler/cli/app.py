"""The root of `rmcs`: every command is one module of this folder and is listed here."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments.lazy_group import Late, LateGroup, loaded
from ray_multicluster_scheduler.cli.arguments.usage_errors import clearer, with_commands
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit
from ray_multicluster_scheduler.cli.terminal.stderr_messages import fitted

_WrongUseError: Any = typer.BadParameter.__base__
"""Whatever is wrong with a command line; Typer has no public name for it."""

_BEFORE = "Error: "
"""What Typer writes before it."""


class Root(LateGroup):
    """What `rmcs --help` lists, in this order. A test holds these sentences and those of the commands together."""

    def invoke(self, ctx: Any) -> Any:
        """Every command is run in here, so what is wrong with its values is said here, in words of ours."""
        try:
            return super().invoke(ctx)
        except _WrongUseError as error:
            if isinstance(error, typer.BadParameter):
                error.message = clearer(error.message)
            elif error.ctx is not None:
                error.message = with_commands(error.message, error.ctx.command, lambda: loaded(self))
            said = fitted(f"{_BEFORE}{error.format_message()}", sys.stderr)
            error.format_message = lambda: said.removeprefix(_BEFORE)
            raise

    late = {  # noqa: RUF012 - it is declared as a ClassVar where it comes from
        "up": Late("up", "up", "Run a service until it is stopped."),
        "down": Late("up", "down", "Stop the service of a state folder."),
        "status": Late("status", "status", "Show clusters and queue at a glance."),
        "top": Late("top", "top", "Watch clusters, nodes, queue and running items live."),
        "job": Late("job", "app", "Submit and steer Ray jobs, with the flags of `ray job`."),
        "task": Late("task", "app", "Look at and steer items: tasks, actors, jobs and gangs."),
        "actor": Late("actor", "app", "List and kill actors."),
        "queue": Late("queue", "app", "Show what waits, and why; pause and resume."),
        "clusters": Late("clusters", "app", "Show the clusters, and take them in and out of service."),
        "explain": Late("explain", "explain", "Explain why an item is where it is, or what a code means."),
        "plan": Late("plan", "plan", "Ask where an item would go now, without submitting it."),
        "events": Late("events", "events", "Tell what happened lately, and what happens."),
        "doctor": Late("doctor", "doctor", "Look for what commonly goes wrong, and say how to mend it."),
        "config": Late("config", "app", "Check and show the configuration."),
        "owner": Late("owner", "app", "List the owners of items, and set their limits."),
        "token": Late("token", "app", "Make, list and revoke tokens of a service."),
        "debug-dump": Late("debug_dump", "debug_dump", "Write an archive for a bug report, without secrets."),
        "trace": Late("trace", "trace", "Write what a service has run as a trace, a CSV file."),
        "simulate": Late("simulate", "simulate", "Run a workload on a simulated fleet."),
        "replay": Late("replay", "replay", "Feed a recorded run to the scheduler's brain."),
        "fleet": Late("fleet", "app", "Start and stop local Ray clusters on this machine."),
        "demo": Late("demo", "demo", "Show the whole story on two real Ray clusters here."),
    }


EPILOG = """\
\b
Most commands ask a service: that of --address or RMCS_ADDRESS, else the one
that runs here. New here? `rmcs demo`. Something is wrong? `rmcs doctor`.

\b
Exit codes:
    0  done; the work succeeded
    1  it could not be done: nobody answers, it was refused, or a disk is full
    2  the command line or the configuration is wrong, or there is no service
  100  the work failed, or what was looked at is not well
  101  it is not over
  102  there is no such item, cluster, token or owner
  103  it was cancelled
  130  Ctrl+C
  141  whoever read what it prints stopped reading
"""
app = typer.Typer(
    name="rmcs",
    cls=Root,
    help="One control plane above many Ray clusters.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: half the time, and good to grep
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[
        int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Log to stderr; twice: in detail.")
    ] = 0,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON lines (implies -v).")] = False,
    _: Annotated[
        bool, typer.Option("-V", "--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    if verbose or log_json:
        from ray_multicluster_scheduler.common.logging import configure

        configure("DEBUG" if verbose > 1 else "INFO", json=log_json)


@app.command()
def version(output: Output = Format.table) -> None:
    """Print the version."""
    from ray_multicluster_scheduler import __version__

    emit({"version": __version__}, output, lambda: __version__)

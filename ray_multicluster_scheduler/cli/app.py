"""The root of `rmcs`: the list of all commands. Each one is a module of `commands/`, imported when it runs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments.lazy_group import LazyCommand, LazyGroup, load_all
from ray_multicluster_scheduler.cli.arguments.usage_errors import simplify_usage_error, suggest_command
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, folded_for

_UsageError: Any = typer.BadParameter.__base__
"""The base class of all errors of a command line; Typer has no public name for it."""

_PREFIX = "Error: "
"""Typer prints this before the message."""


class Root(LazyGroup):
    """Lists the commands in the order of `rmcs --help`. A test checks that each line is the help of its command."""

    def invoke(self, ctx: Any) -> Any:
        """Runs every command, so this is where the messages of usage errors are rewritten."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if isinstance(error, typer.BadParameter):
                error.message = simplify_usage_error(error.message)
            elif error.ctx is not None:
                error.message = suggest_command(error.message, error.ctx.command, lambda: load_all(self))
            text = folded_for(sys.stderr, f"{_PREFIX}{error.format_message()}")
            error.format_message = lambda: text.removeprefix(_PREFIX)
            raise

    lazy_commands = {  # noqa: RUF012 - the base class declares it as a ClassVar
        "up": LazyCommand("up", "up", "Run a service until it is stopped."),
        "down": LazyCommand("up", "down", "Stop the service of a state folder."),
        "status": LazyCommand("status", "status", "Show clusters and queue at a glance."),
        "top": LazyCommand("top", "top", "Watch clusters, nodes, queue and running items live."),
        "job": LazyCommand("job", "app", "Submit and manage Ray jobs, with the flags of `ray job`."),
        "task": LazyCommand("task", "app", "List and manage items: tasks, actors, jobs and gangs."),
        "actor": LazyCommand("task", "actor_app", "List and kill actors."),
        "serving": LazyCommand("serving", "app", "Serve models: deploy, list, scale and delete them."),
        "queue": LazyCommand("queue", "app", "Show what waits, and why; pause and resume queues."),
        "clusters": LazyCommand("clusters", "app", "Show the clusters; cordon, drain and change them."),
        "explain": LazyCommand("explain", "explain", "Explain the state of an item, or what a code means."),
        "plan": LazyCommand("submit", "plan", "Show where an item would go now, without submitting it."),
        "preempt": LazyCommand("preempt", "preempt", "Show which running items would give way to a waiting item."),
        "events": LazyCommand("events", "events", "Print recent events, and follow new ones."),
        "doctor": LazyCommand("doctor", "doctor", "Check for common problems, and say how to fix them."),
        "config": LazyCommand("config", "app", "Check and show the configuration."),
        "owner": LazyCommand("owner", "app", "List the owners of items, and set their limits."),
        "pool": LazyCommand("pool", "app", "Share the fleet by pools with a quota."),
        "token": LazyCommand("token", "app", "Create, list and revoke tokens of a service."),
        "debug-dump": LazyCommand("debug_dump", "debug_dump", "Write an archive for a bug report, without secrets."),
        "trace": LazyCommand("simulate", "trace", "Write what a service has run to a trace, a CSV file."),
        "simulate": LazyCommand("simulate", "simulate", "Run a workload on a simulated fleet."),
        "replay": LazyCommand("simulate", "replay", "Replay a recorded run through the scheduler."),
        "fleet": LazyCommand("fleet", "app", "Start and stop local Ray clusters on this machine."),
        "demo": LazyCommand("demo", "demo", "Run a tour on two real Ray clusters on this machine."),
    }


EPILOG = """\
\b
Most commands ask a service: that of --address or RMCS_ADDRESS, else the one
on this machine. First steps: `rmcs demo`. Problems: `rmcs doctor`.

\b
Exit codes:
    0  done; the work succeeded
    1  not done: no answer, refused, or a disk is full
    2  the command line or the configuration is wrong, or there is no service
  100  the work failed, or a check found a problem
  101  the work has not ended
  102  no such item, cluster, token or owner
  103  the work was cancelled
  130  Ctrl+C
  141  the reader of the output stopped reading
"""
app = typer.Typer(
    name="rmcs",
    cls=Root,
    help="One control plane above many Ray clusters.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help is twice as fast, and easy to grep
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

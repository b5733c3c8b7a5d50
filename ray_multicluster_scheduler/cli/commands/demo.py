"""`rmcs demo`: the whole story on this machine, each step checked, in a few minutes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ray_multicluster_scheduler.cli import exit_codes

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.demo_steps import Story


def demo() -> None:
    """Show the whole story on two real Ray clusters here.

    Starts them, runs tasks, an actor and a job on them, and shows why each ran where it did. Exit code 100 if something
    of it did not happen as it should.
    """
    from ray_multicluster_scheduler import LocalFleet
    from ray_multicluster_scheduler.cli.commands.fleet import describe
    from ray_multicluster_scheduler.cli.demo_steps import Story
    from ray_multicluster_scheduler.cli.layout.output import console

    screen = console()
    screen.print("Starting two local Ray clusters (about 10 seconds; the first time longer) …")
    settings = {"submission_interval_s": 0, "resource_threshold": 1}

    def progress(cluster: str, text: str) -> None:
        screen.print(f"   {cluster}: {text}", markup=False)

    try:
        with LocalFleet(*describe(2, 2), settings=settings, progress=progress) as fleet:
            story = Story(screen, fleet.config_path)
            problems = story.tell()
            screen.print("\nStopping the clusters …")
    except KeyboardInterrupt:
        screen.print("Everything that the demo started is stopped.")
        raise
    _conclude(story, problems)


def _conclude(story: Story, problems: list[str]) -> None:
    story.print_table()
    if problems:
        for problem in problems:
            typer.echo(f"rmcs demo: {problem}", err=True)
        raise typer.Exit(exit_codes.FAILED)
    typer.echo(f"All of it happened as it should. Next: README.md, or `{_rmcs()} fleet up` for a fleet that stays.")


def _rmcs() -> str:
    """How to call it in the shell that this was called from: `make demo` finds it where no PATH leads."""
    beside = Path(sys.executable).with_name("rmcs")
    if shutil.which("rmcs") or not beside.exists():
        return "rmcs"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)

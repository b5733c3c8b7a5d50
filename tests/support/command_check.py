"""Check that a command line shown in a text is valid for `rmcs`."""

from __future__ import annotations

import typer.main
from typer.core import TyperCommand, TyperGroup

from ray_multicluster_scheduler.cli.app import app
from ray_multicluster_scheduler.cli.arguments.lazy_group import LazyGroup, load_all


def check_command(words: list[str]) -> None:
    """Check the words after `rmcs`. Fails for an unknown command or option."""
    root = typer.main.get_group(app)
    assert isinstance(root, LazyGroup)
    command: TyperGroup | TyperCommand = load_all(root)
    context = typer.Context(command, info_name="rmcs")
    rest = list(words)
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        word = rest.pop(0)
        found = command.get_command(context, word)
        assert found is not None, f"there is no `rmcs {' '.join(words)}`"
        command = found
        context = typer.Context(command, parent=context, info_name=word)
    command.make_context("rmcs", rest, parent=context.parent, resilient_parsing=True)

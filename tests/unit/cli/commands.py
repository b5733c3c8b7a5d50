"""All commands there are, as Typer knows them."""

from __future__ import annotations

from typing import Any

import typer.main

from ray_multicluster_scheduler.cli.app import app
from ray_multicluster_scheduler.cli.arguments.lazy_group import LazyGroup, load_all


def leaves(command: Any, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every command below this one that can be run, by its words."""
    alone = not hasattr(command, "commands") or command.invoke_without_command
    found = {" ".join(words): command} if words and alone else {}
    for name, one in getattr(command, "commands", {}).items():
        found |= leaves(one, (*words, name))
    return found


def all_commands() -> dict[str, Any]:
    root = typer.main.get_group(app)
    assert isinstance(root, LazyGroup)
    return leaves(load_all(root))

"""LateGroup: commands that are loaded when they are used, so that `rmcs --help` and each of them start at once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from ray_multicluster_scheduler.cli.arguments.examples import with_examples
from ray_multicluster_scheduler.cli.arguments.option_fast_path import quicken, quickened


class Late(NamedTuple):
    """Where a command is (a function, or a Typer) in this folder, and what the list of commands says of it."""

    module: str
    name: str
    help: str


class LateGroup(TyperGroup):
    """Lists ``late`` without loading it; the module of a command is loaded when that is called."""

    late: ClassVar[Mapping[str, Late]] = {}

    def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
        listed = {name: TyperCommand(name, help=one.help, rich_markup_mode=None) for name, one in self.late.items()}
        super().__init__(commands={**listed, **(commands or {})}, **attributes)

    def get_params(self, ctx: Any) -> list[Any]:
        return quickened(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Typer asks here for what is to be run, or completed."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, command, rest
        late = self.late.get(name)
        return name, ready(command, name) if late is None else load(name, late), rest


def loaded(group: LateGroup) -> TyperGroup:
    """With all of its commands, for whoever writes about them."""
    whole = TyperGroup(name=group.name, help=group.help, params=group.params, rich_markup_mode=None)
    whole.commands = {**group.commands, **{name: load(name, one) for name, one in group.late.items()}}
    return whole


def load(name: str, late: Late) -> Any:
    """The command itself."""
    found = getattr(import_module(f"ray_multicluster_scheduler.cli.commands.{late.module}"), late.name)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return ready(group, name)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(found)
    return ready(typer.main.get_command(alone), name)


def ready(command: Any, name: str) -> Any:
    """The same command, with what all of them have."""
    return quicken(with_examples(command, name))

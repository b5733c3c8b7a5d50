"""LazyGroup: a group of commands that imports the module of a command only when that command runs.

Typer converts option values with pydantic, whose import takes as long as everything else that a simple command does. So
that is skipped for values that already have their type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from ray_multicluster_scheduler.cli.arguments.examples import with_examples

_PLAIN_TYPES = (str, int, float)


class LazyCommand(NamedTuple):
    """Module and name of a command (a function or a Typer), its line in the list of commands, and settings of Click."""

    module: str
    name: str
    help: str
    context_settings: Mapping[str, Any] = {}


class LazyGroup(TyperGroup):
    """Lists ``lazy_commands`` without importing them. ``prefix``: the words before their names, with a space."""

    prefix: ClassVar[str] = ""
    lazy_commands: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
        listed = {
            name: TyperCommand(name, help=one.help, rich_markup_mode=None) for name, one in self.lazy_commands.items()
        }
        super().__init__(commands={**listed, **(commands or {})}, **attributes)

    def get_params(self, ctx: Any) -> list[Any]:
        return convert_lazily(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Typer calls this for the command to run or to complete."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, command, rest
        words, lazy = f"{self.prefix}{name}", self.lazy_commands.get(name)
        return name, _prepared(command, words) if lazy is None else load_command(words, lazy), rest


def load_all(group: LazyGroup) -> TyperGroup:
    """A copy of the group with all commands imported."""
    full = TyperGroup(name=group.name, help=group.help, params=group.params, rich_markup_mode=None)
    full.commands = {**group.commands, **_load_lazy(group)}
    for below in full.commands.values():
        if isinstance(below, LazyGroup):
            below.commands.update(_load_lazy(below))
    return full


def _load_lazy(group: LazyGroup) -> dict[str, Any]:
    return {name: load_command(f"{group.prefix}{name}", one) for name, one in group.lazy_commands.items()}


def load_command(words: str, lazy: LazyCommand) -> Any:
    """Import one command; ``words`` are its name, behind that of its group."""
    name = words.rpartition(" ")[2]
    found = getattr(import_module(f"ray_multicluster_scheduler.cli.commands.{lazy.module}"), lazy.name)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return _prepared(group, words)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, context_settings=dict(lazy.context_settings))(found)
    return _prepared(typer.main.get_command(single), words)


def _prepared(command: Any, words: str) -> Any:
    """The same command, with its examples and with lazy conversion of its options and of those below it."""
    _use_lazy_conversion(command)
    return with_examples(command, words)


def _use_lazy_conversion(command: Any) -> None:
    options = command.get_params
    command.get_params = lambda context: convert_lazily(options(context))
    for below in getattr(command, "commands", {}).values():
        _use_lazy_conversion(below)


def convert_lazily(options: list[Any]) -> list[Any]:
    """The same options; values that already have their type are not converted by pydantic."""
    for one in options:
        convert = getattr(one, "get_runtime_param", None)  # older versions of Typer do not use pydantic
        if convert is not None and hasattr(one, "type_descriptor") and "get_runtime_param" not in vars(one):
            one.get_runtime_param = _LazyConverter(one, convert).get_converter
    return options


class _LazyConverter:
    """Stands in for Typer's own converter of one option or argument, and loads that only if it is needed."""

    def __init__(self, option: Any, convert: Callable[[], Any]) -> None:
        self._option, self._convert = option, convert
        self._kind = option.type_descriptor.annotation

    def get_converter(self) -> _LazyConverter:
        return self

    def coerce(self, value: Any, *words: Any, **named: Any) -> Any:
        """The same result as Typer's own converter."""
        if self._option.multiple or self._option.nargs != 1:
            converted = () if value is None else None
        else:
            converted = self._single(value)
        if converted is None and value is not None:
            return self._convert().coerce(value, *words, **named)
        return converted

    def _single(self, value: Any) -> Any:
        """None: only Typer's converter knows."""
        if get_origin(self._kind) is Literal:
            return value if value in get_args(self._kind) else None
        if not isinstance(self._kind, type):
            return None
        if issubclass(self._kind, Enum):
            return next((one for one in self._kind if value in (one, one.value)), None)
        return value if self._kind in _PLAIN_TYPES and type(value) is self._kind else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert(), name)

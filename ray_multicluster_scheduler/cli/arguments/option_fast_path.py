"""Values of options that are what they should be already are left alone.

Typer has them converted by pydantic; to load that, for a text that stays a text, takes as long as all else that a
simple command does. Whatever is not plain is converted by Typer as before.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

_UNCHANGED = (str, int, float)


def quicken(command: Any) -> Any:
    """The same command; its options, and those of the commands below it, load nothing that they do not need."""
    options = command.get_params
    command.get_params = lambda context: quickened(options(context))
    for below in getattr(command, "commands", {}).values():
        quicken(below)
    return command


def quickened(options: list[Any]) -> list[Any]:
    """The same options."""
    for one in options:
        convert = getattr(one, "get_runtime_param", None)  # older versions of Typer need no pydantic
        if convert is not None and hasattr(one, "type_descriptor") and "get_runtime_param" not in vars(one):
            one.get_runtime_param = _Quick(one, convert).itself
    return options


class _Quick:
    """What Typer asks for the value of one option or argument."""

    def __init__(self, option: Any, convert: Callable[[], Any]) -> None:
        self._option, self._convert = option, convert
        self._kind = option.type_descriptor.annotation

    def itself(self) -> _Quick:
        return self

    def coerce(self, value: Any, *words: Any, **named: Any) -> Any:
        """As Typer does it, if it is not already what it should be."""
        if self._option.multiple or self._option.nargs != 1:
            quick = () if value is None else None
        else:
            quick = self._single(value)
        return self._convert().coerce(value, *words, **named) if quick is None and value is not None else quick

    def _single(self, value: Any) -> Any:
        """None: this is not known here."""
        if not isinstance(self._kind, type):
            return None
        if issubclass(self._kind, Enum):
            return next((one for one in self._kind if value in (one, one.value)), None)
        return value if self._kind in _UNCHANGED and type(value) is self._kind else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert(), name)

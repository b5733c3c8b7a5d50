"""Rewrites the usage errors of Typer and pydantic: shorter, and with the command or value that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

_CHOICE = re.compile(r"^'(?P<typed>.*)' is not one of (?P<known>'.*')\.?$")
_KIND = re.compile(r"^Input should be (?P<wanted>.*?)(, unable to .*)?$")
_NO_COMMAND = re.compile(r"^No such command '(?P<typed>.*)'\.$")


def simplify_usage_error(message: str) -> str:
    """The message without the phrases of the libraries, and with the closest known value."""
    message = message.removeprefix("Value error, ")
    if found := _KIND.match(message):
        return f"expected {found['wanted']}."
    found = _CHOICE.match(message)
    if found is None:
        return message
    from difflib import get_close_matches

    known = {one.casefold(): one for one in re.findall(r"'([^']*)'", found["known"])}
    close = get_close_matches(found["typed"].casefold(), known, n=1)
    return f"{message.rstrip('.')}.{f' Did you mean {known[close[0]]!r}?' if close else ''}"


def check_choices(option: str, values: Iterable[str], known: Sequence[str]) -> None:
    """Raises BadParameter for a value that is not known (upper case is optional), before any request is sent."""
    for one in values:
        if one not in known and one.upper() not in known:
            raise typer.BadParameter(f"{one!r} is not one of {', '.join(map(repr, known))}.", param_hint=option)


def suggest_command(message: str, group: Any, load_all: Callable[[], Any]) -> str:
    """For an unknown command without a similar name: the groups that have one of that name, else the list of commands.
    ``load_all`` imports all commands, and is called only here."""
    found = _NO_COMMAND.match(message)
    if found is None:
        return message
    typed, known = found["typed"], load_all().commands
    elsewhere = [f"`rmcs {name} {typed}`" for name, one in known.items() if typed in getattr(one, "commands", {})]
    if group.commands.keys() == known.keys() and elsewhere:
        return f"{message} Did you mean {' or '.join(elsewhere)}?"
    return f"{message} There are: {', '.join(group.commands)}."

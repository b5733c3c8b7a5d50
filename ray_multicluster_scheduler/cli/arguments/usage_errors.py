"""What is wrong on a command line, for the person who typed it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

_CHOICE = re.compile(r"^'(?P<typed>.*)' is not one of (?P<known>'.*')\.?$")
_KIND = re.compile(r"^Input should be (?P<wanted>.*?)(, unable to .*)?$")
_NO_COMMAND = re.compile(r"^No such command '(?P<typed>.*)'\.$")


def clearer(message: str) -> str:
    """Without the words of the libraries between, and with what was probably meant."""
    said = message.removeprefix("Value error, ")
    if found := _KIND.match(said):
        return f"expected {found['wanted']}."
    found = _CHOICE.match(said)
    if found is None:
        return said
    from difflib import get_close_matches

    known = {one.casefold(): one for one in re.findall(r"'([^']*)'", found["known"])}
    close = get_close_matches(found["typed"].casefold(), known, n=1)
    return f"{said.rstrip('.')}.{f' Did you mean {known[close[0]]!r}?' if close else ''}"


def check_known(option: str, said: Iterable[str], known: Sequence[str]) -> None:
    """Words that can only be some of these are looked at before anybody is asked. Raises BadParameter."""
    for one in said:
        if one not in known and one.upper() not in known:  # states may be small
            raise typer.BadParameter(f"{one!r} is not one of {', '.join(map(repr, known))}.", param_hint=option)


def with_commands(message: str, group: Any, everything: Callable[[], Any]) -> str:
    """Of a command that is not there, and not nearly: where one of that name is, or else which ones there are.
    ``everything`` loads all commands, and is called only for that."""
    found = _NO_COMMAND.match(message)
    if found is None:
        return message
    typed, known = found["typed"], everything().commands
    elsewhere = [f"`rmcs {name} {typed}`" for name, one in known.items() if typed in getattr(one, "commands", {})]
    if group.commands.keys() == known.keys() and elsewhere:
        return f"{message} Did you mean {' or '.join(elsewhere)}?"
    return f"{message} There are: {', '.join(group.commands)}."

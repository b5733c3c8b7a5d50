"""What is wrong with a value on a command line, for the person who typed it."""

from __future__ import annotations

import re

_CHOICE = re.compile(r"^'(?P<typed>.*)' is not one of (?P<known>'.*')\.?$")
_KIND = re.compile(r"^Input should be (?P<wanted>.*?)(, unable to .*)?$")


def clearer(message: str) -> str:
    """Without the words of the libraries between, and with what was probably meant."""
    said = message.removeprefix("Value error, ")
    if found := _KIND.match(said):
        return f"expected {found['wanted']}."
    found = _CHOICE.match(said)
    if found is None:
        return said
    from difflib import get_close_matches

    known = re.findall(r"'([^']*)'", found["known"])
    close = get_close_matches(found["typed"].casefold(), known, n=1)
    return f"{said.rstrip('.')}.{f' Did you mean {close[0]!r}?' if close else ''}"

"""Secrets in data that stands in a text, as JSON or as Python prints it: ``{"password": "abc"}``.

Quotes may be escaped, as in JSON within JSON, and spelt as a shell needs them within its own: ``'"'"'``, ``'\\''``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_SHELL = r"""'"'"'|'\\''"""
_QUOTE = rf"""(?:{_SHELL}|\\{{0,31}}["'])"""
_KEY = re.compile(rf"({_QUOTE})([\w. /-]{{1,200}})\1\s*:\s*")
_NUMBER = re.compile(r"-?\d[\w.+-]*")
_OPENING = re.compile(_QUOTE)
_MARK = re.compile(rf"\\{{0,31}}(?:{_SHELL})|{_QUOTE}|\n")
_PART = re.compile(rf"{_QUOTE}|[\[\]{{}}]|{_NUMBER.pattern}")
_COLON = re.compile(r"\s*:")


def without_quoted(text: str, looks_secret: Callable[[str], bool], tell: Callable[[str], object], masked: str) -> str:
    """The same with ``masked`` instead of each text and number that stands below a name that looks secret; yes, no and
    nothing are nobody's secret. ``tell`` hears of each that ends before the text does, as it is and unescaped."""
    pieces, told = [], 0
    found = _KEY.search(text)
    while found is not None:
        at = found.end()
        if looks_secret(found[2]):
            shown, at = _value(text, at, tell, masked)
            pieces += [text[told : found.end()], shown]
            told = at
        found = _KEY.search(text, at)
    return "".join([*pieces, text[told:]])


def _value(text: str, at: int, tell: Callable[[str], object], masked: str) -> tuple[str, int]:
    """What is shown of the value that begins there, and where it ends."""
    if text[at : at + 1] in ("[", "{"):
        return masked, _end_of_many(text, at, tell)
    opening = _OPENING.match(text, at)
    if opening is not None:
        inside, end, closed = _quoted(text, opening)
        _tell_quoted(inside, opening[0], tell if closed else _nobody)
        return (f"{opening[0]}{masked}{opening[0] if closed else ''}" if inside else text[at:end]), end
    number = _NUMBER.match(text, at)
    if number is None:
        return "", at
    tell(number[0])
    return masked, number.end()


def _quoted(text: str, opening: re.Match[str]) -> tuple[str, int, bool]:
    """What stands in these quotes, where they end, and whether they are closed: else they end with the line."""
    for mark in _MARK.finditer(text, opening.end()):
        if mark[0] == "\n":
            return text[opening.end() : mark.start()], mark.start(), False
        if _closes(mark[0], opening[0]):
            begins = mark.end() - len(opening[0])
            return text[opening.end() : begins], mark.end(), True
    return text[opening.end() :], len(text), False


def _closes(mark: str, opening: str) -> bool:
    """Quotes that open with n backslashes close with n, and with each backslash that stands before them within,
    which is written as 2n + 2; a quote within is written with 2n + 1."""
    shell = mark.lstrip("\\")
    if len(shell) > 1 or len(opening.lstrip("\\")) > 1:
        return shell == opening
    if mark[-1] != opening[-1]:
        return False
    return (len(mark) - 1) % (2 * len(opening)) == len(opening) - 1


def _end_of_many(text: str, at: int, tell: Callable[[str], object]) -> int:
    """Where the bracket that opens there is closed, else where the text ends; all in it is told but names."""
    depth = 0
    part = _PART.search(text, at)
    while part is not None:
        end = part.end()
        if part[0] in "[]{}":
            depth += 1 if part[0] in "[{" else -1
        elif _NUMBER.fullmatch(part[0]):
            tell(part[0])
        else:
            inside, end, closed = _quoted(text, part)
            _tell_quoted(inside, part[0], tell if closed and not _COLON.match(text, end) else _nobody)
        if depth == 0:
            return end
        part = _PART.search(text, end)
    return len(text)


def _tell_quoted(inside: str, quote: str, tell: Callable[[str], object]) -> None:
    if inside:
        tell(inside)
    plain = re.sub(_SHELL, "'", inside)
    for _ in range(len(quote).bit_length()):
        try:
            plain = str(json.loads(f'"{plain}"', strict=False))
        except ValueError:
            break
    if plain != inside:
        tell(plain)


def _nobody(_: str) -> None:
    """Hears of what is not told."""

"""What looks like a secret, and how it is shown instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ray_multicluster_scheduler.common.redaction.structured import without_quoted

MASKED = "•••"
_ENDS = re.compile(
    r"(?:token|secret|password|passwd|passphrase|passcode|pwd?|credential|cookie|sess(?:ion)?id|dsn|signature|webhook"
    r"|jwt|otp|key)s?$"
)
"""What the last letters of a part of a name are: PGPASSWORD, apikey, ROOTPW."""
_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""Every shell has these: where one is, and where one was."""
_WHOLE = frozenset({"auth", "authorization", "bearer", "creds", "pass", "pat"})
"""What a part of a name is as a whole: not author, path or compass."""
_ANIMALS = re.compile(r"(?:mon|don|tur|hoc|joc|whis)keys?")
_COUNTED = frozenset(
    [
        "max",
        "min",
        "num",
        "n",
        "count",
        "total",
        "limit",
        "per",
        "new",
        "batch",
        "prompt",
        "input",
        "output",
        "context",
        "special",
        "stop",
    ]
)
"""Beside one of these, tokens are words of a text."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LETTERS = re.compile(r"[A-Za-z]+")
_STRING = re.compile(r"connection_?string", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<![\w+.-])(\w[\w+.-]*://[^/\s:@]*:)([^/\s@]+)(?=@)")
"""A password, as in https://user:password@host."""
_WHO_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password, or a token in the place of both."""
_VALUE = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"';|&]+)""")
_GIVEN = re.compile(r"(?<![\w-])([\w-]+)=")
_HEADER = re.compile(r"(?<![\w-])([\w-]+):\s*(?!//)")
_HEADED = re.compile(r"""(?:(?:bearer|basic|digest|token)\s+)?[^\s"';|&]+""", re.IGNORECASE)
_BEARER = re.compile(r"""(?<![\w-])(bearer\s+)([^\s"';|&]+)""", re.IGNORECASE)
"""As they are given to curl: Authorization: Bearer abc."""
_OPTION = re.compile(r"""(?<![^\s"'])(--?[\w-]+)\s+(?!--?[A-Za-z])""")
_MAYBE = re.compile(r"[=@:-]|bearer", re.IGNORECASE)
_MOST, _OVERLAP = 20_000, 2_000
"""So much of a line is looked at, at once; more is covered as it is."""


def name_looks_secret(name: str) -> bool:
    """Does a variable of this name hold something that nobody else is to read?"""
    if name in _FOLDERS:
        return False
    parts = {one.lower() for one in (*_PART.findall(name), *_LETTERS.findall(name))}
    return any(_is_secret(one, parts) for one in parts) or _STRING.search(name) is not None


def _is_secret(part: str, beside: set[str]) -> bool:
    if part in _WHOLE or (part == "session" and "aws" in beside):
        return True
    if part == "tokens" and not beside.isdisjoint(_COUNTED):
        return False
    return _ENDS.search(part) is not None and _ANIMALS.fullmatch(part) is None


def masked_line(text: str) -> str:
    """A command line without the values of what looks like a secret in it: ``API_KEY=… python train.py --token …``."""
    return _line_without(text, lambda _: None)


def secrets_in_line(text: str) -> list[str]:
    """Those values, without the quotes around them; of a header also its last word."""
    found: list[str] = []
    for at in range(0, max(1, len(text) - _OVERLAP), _MOST - _OVERLAP):
        _line_without(text[at : at + _MOST], found.append)
    bare = [one[1:-1] if one[:1] in ("'", '"') and one[-1:] == one[:1] else one for one in found]
    return [*bare, *(one.split()[-1] for one in bare if len(one.split()) > 1)]


def _line_without(text: str, tell: Callable[[str], object]) -> str:
    if not _MAYBE.search(text):
        return text
    shown, rest = (text, "") if len(text) <= _MOST else (text[:_MOST], MASKED)

    def after(one: re.Match[str]) -> str:
        tell(one[2])
        return f"{one[1]}{MASKED}"

    shown = without_quoted(shown, name_looks_secret, tell, MASKED)
    for name, value in ((_GIVEN, _VALUE), (_HEADER, _HEADED)):
        shown = _without_named(shown, name, value, tell)
    shown = _without_named(_BEARER.sub(after, shown), _OPTION, _VALUE, tell)
    return _IN_ADDRESS.sub(after, shown) + rest


def _without_named(text: str, name: re.Pattern[str], value: re.Pattern[str], tell: Callable[[str], object]) -> str:
    """Without the values that follow names that look secret. In what follows another name, such as the whole of
    ``--reason='password=abc'``, there may be more of both."""
    pieces, told = [], 0
    named = name.search(text)
    while named is not None:
        given = value.match(text, named.end()) if name_looks_secret(named[1]) else None
        if given is not None:
            tell(given[0])
            pieces += [text[told : named.end()], MASKED]
            told = given.end()
        named = name.search(text, named.end() if given is None else given.end())
    return "".join([*pieces, text[told:]])


def masked_addresses(text: str) -> str:
    """A text without anything that stands before the host in an address: https://•••@host."""
    return _WHO_IN_ADDRESS.sub(MASKED, text)


def line_has_secrets(text: str) -> bool:
    return masked_line(text) != text


def masked(value: Any) -> Any:
    """Plain data without its secrets."""
    return replaced(value, lambda _: MASKED)


def has_secrets(value: Any) -> bool:
    found: list[object] = []
    replaced(value, found.append)
    return bool(found)


def secrets_in_value(value: Any) -> list[str]:
    """The texts and numbers in plain data that look like secrets; of addresses what is secret in them."""
    found: list[str] = []
    _tell_secrets(value, found)
    return found


def _tell_secrets(value: Any, found: list[str], *, secret: bool = False) -> None:
    if isinstance(value, str):
        found.extend([value] if secret else [])
        found.extend(one[2] for one in _IN_ADDRESS.finditer(value))
    elif isinstance(value, Mapping):
        for name, one in value.items():
            _tell_secrets(one, found, secret=secret or (isinstance(name, str) and name_looks_secret(name)))
    elif isinstance(value, (list, tuple)):
        for one in value:
            _tell_secrets(one, found, secret=secret)
    elif secret and isinstance(value, (int, float)) and not isinstance(value, bool):
        found.append(str(value))


def replaced(value: Any, instead: Callable[[Any], Any], *, secret: bool = False) -> Any:
    """Plain data with ``instead`` of each text or number that looks like a secret, by the name that it has in a
    mapping, and of each text that has a password in it."""
    if isinstance(value, str):
        return instead(value) if secret or _has_password(value) else value
    if isinstance(value, Mapping):
        return {
            name: replaced(one, instead, secret=secret or (isinstance(name, str) and name_looks_secret(name)))
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replaced(one, instead, secret=secret) for one in value]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)  # yes and no are nobody's secret
    return instead(value) if secret and number else value


def _has_password(text: str) -> bool:
    return "://" in text and "@" in text and _IN_ADDRESS.search(text) is not None

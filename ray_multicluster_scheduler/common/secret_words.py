"""What looks like a secret, and how it is shown instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

MASKED = "•••"
_ENDS = re.compile(
    r"(?:token|secret|password|passwd|passphrase|pwd|credential|cookie|dsn|signature|webhook|jwt|key)s?$"
)
"""What the last letters of a part of a name are: PGPASSWORD, apikey."""
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
_IN_ADDRESS = re.compile(r"(?<![\w+.-])(\w[\w+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)")
"""A password, as in https://user:password@host."""
_WHO_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password, or a token in the place of both."""
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"';|&]+)"""
_GIVEN = re.compile(rf"(?<![\w-])([\w-]+)=({_VALUE})")
_HEADER = re.compile(
    r"""(?<![\w-])([\w-]+)(:\s*)(?!//)((?:(?:bearer|basic|digest|token)\s+)?[^\s"';|&]+)""", re.IGNORECASE
)
_BEARER = re.compile(r"""(?<![\w-])(bearer\s+)[^\s"';|&]+""", re.IGNORECASE)
"""As they are given to curl: Authorization: Bearer abc."""
_OPTION = re.compile(rf"(?<!\S)(--?[\w-]+)(\s+)({_VALUE})")
_MAYBE = re.compile(r"[=@:-]|bearer", re.IGNORECASE)
_MOST = 20_000


def name_looks_secret(name: str) -> bool:
    """Does a variable of this name hold something that nobody else is to read?"""
    parts = {one.lower() for one in (*_PART.findall(name), *_LETTERS.findall(name))}
    return any(_is_secret(one, parts) for one in parts) or _STRING.search(name) is not None


def _is_secret(part: str, beside: set[str]) -> bool:
    if part in _WHOLE:
        return True
    if part == "tokens" and not beside.isdisjoint(_COUNTED):
        return False
    return _ENDS.search(part) is not None and _ANIMALS.fullmatch(part) is None


def masked_line(text: str) -> str:
    """A command line without the values of what looks like a secret in it: ``API_KEY=… python train.py --token …``."""
    if not _MAYBE.search(text):
        return text
    shown, rest = (text, "") if len(text) <= _MOST else (text[:_MOST], MASKED)
    shown = _GIVEN.sub(lambda one: f"{one[1]}={MASKED}" if name_looks_secret(one[1]) else one[0], shown)
    shown = _HEADER.sub(lambda one: f"{one[1]}{one[2]}{MASKED}" if name_looks_secret(one[1]) else one[0], shown)
    shown = _BEARER.sub(rf"\g<1>{MASKED}", shown)
    shown = _OPTION.sub(lambda one: f"{one[1]}{one[2]}{MASKED}" if name_looks_secret(one[1]) else one[0], shown)
    return _IN_ADDRESS.sub(rf"\g<1>{MASKED}", shown) + rest


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

"""What looks like a secret, and how it is shown instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

MASKED = "•••"
_WORDS = (
    r"(?:[a-z]*(?:token|secrets?|passwords?|passwd|passphrase|pwd|keys?|credentials?|cookie|dsn|signature|webhook)"
    r"|auth(?:orization)?|pass|pat|connection_?string)"
)
"""As a part of a name, between others: API_TOKEN, apiKey and db-pass, not tokenizer, author or path."""
_NAME = re.compile(rf"(?:^|[^a-z]){_WORDS}(?:$|[^a-z])", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<![\w+.-])(\w[\w+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)")
"""A password, as in https://user:password@host."""
_WHO_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password, or a token in the place of both."""
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"';|&]+)"""
_GIVEN = re.compile(rf"(?<![\w-])([\w-]+)=({_VALUE})")
_OPTION = re.compile(rf"(?<!\S)(--?[\w-]+)(\s+)({_VALUE})")
_MOST = 20_000


def name_looks_secret(name: str) -> bool:
    """Does a variable of this name hold something that nobody else is to read?"""
    return _NAME.search(name) is not None


def masked_line(text: str) -> str:
    """A command line without the values of what looks like a secret in it: ``API_KEY=… python train.py --token …``."""
    if "=" not in text and "-" not in text and "@" not in text:
        return text
    shown, rest = (text, "") if len(text) <= _MOST else (text[:_MOST], MASKED)
    shown = _GIVEN.sub(lambda one: f"{one[1]}={MASKED}" if name_looks_secret(one[1]) else one[0], shown)
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
    found: list[str] = []
    replaced(value, found.append)
    return bool(found)


def replaced(value: Any, instead: Callable[[str], Any], *, secret: bool = False) -> Any:
    """Plain data with ``instead`` of each text that looks like a secret, by the name that it has in a mapping, or since
    it has a password in it."""
    if isinstance(value, str):
        return instead(value) if secret or _has_password(value) else value
    if isinstance(value, Mapping):
        return {
            name: replaced(one, instead, secret=secret or (isinstance(name, str) and name_looks_secret(name)))
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replaced(one, instead, secret=secret) for one in value]
    return value


def _has_password(text: str) -> bool:
    return "://" in text and "@" in text and _IN_ADDRESS.search(text) is not None

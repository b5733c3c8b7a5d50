"""Text of others on a line of ours: what would begin another line, or move a terminal's cursor, is spelt out."""

from __future__ import annotations

import re

_CONTROL = "\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069"
"""Control characters, other ends of lines, and those that turn the direction of what follows."""
_ANY = re.compile(f"[{_CONTROL}]")
_BUT_LINES = re.compile(f"(?![\\n\\t])[{_CONTROL}]")


def is_one_line(text: str) -> bool:
    """Is there nothing in it that does more than to be read?"""
    return text.isprintable() or _ANY.search(text) is None


def escaped(text: str) -> str:
    """The same on one line: a newline is ``\\\\n``, an escape character ``\\\\x1b``."""
    return text if text.isprintable() else _ANY.sub(_spelt, text)


def escaped_lines(text: str) -> str:
    """The same for a text of several lines."""
    return text if text.isprintable() else _BUT_LINES.sub(_spelt, text)


def as_json_escapes(document: str) -> str:
    """The same for a JSON text, which stays one."""
    return document if document.isprintable() else _ANY.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _spelt(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")

"""What troubleshooting.md says of a code; the same text is a page of the documentation."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_SECTION = re.compile(r"^### (?P<code>[A-Z_]+)\n\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@cache
def _sections() -> dict[str, str]:
    text = files(__package__).joinpath("troubleshooting.md").read_text(encoding="utf-8")
    return {one["code"]: _LINK.sub(r"\1", one["text"]).strip() for one in _SECTION.finditer(text)}


def codes() -> list[str]:
    """All that something is said of."""
    return sorted(_sections())


def said_of(code: str) -> str | None:
    """In words for a terminal; None for what is no code of ours."""
    return _sections().get(code)

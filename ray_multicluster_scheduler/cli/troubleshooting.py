"""What troubleshooting.md says of a code; the same text is a page of the documentation."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_SECTION = re.compile(r"^### (?P<code>[A-Z_]+)\n\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")

_EMPHASIS = re.compile(r"(?<![\w*`])\*{1,2}(?=\w)([^*`\n]*\w)\*{1,2}(?![\w*`])")
_FENCE = "```"
_FENCED = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_BETWEEN = re.compile(r"\n{2,}")
_HAS_LINES = re.compile(r"[-*+] |\d+\. |\||    ")


@cache
def _sections() -> dict[str, str]:
    text = files(__package__).joinpath("troubleshooting.md").read_text(encoding="utf-8")
    return {one["code"]: _plain(one["text"]) for one in _SECTION.finditer(text)}


def _plain(text: str) -> str:
    """As sentences: a paragraph is one line, however the file is folded, and has no marks in it but those of code.
    Lists, tables and examples keep their lines."""
    parts: list[str] = []
    for part in _FENCED.split(text.strip()):
        parts += [part] if part.startswith(_FENCE) else map(_sentences, filter(None, _BETWEEN.split(part.strip("\n"))))
    return "\n\n".join(parts)


def _sentences(block: str) -> str:
    plain = _EMPHASIS.sub(r"\1", _LINK.sub(r"\1", block))
    return plain if _HAS_LINES.match(plain) else plain.replace("\n", " ")


def codes() -> list[str]:
    """All that something is said of."""
    return sorted(_sections())


def said_of(code: str) -> str | None:
    """In plain sentences; None for what is no code of ours."""
    return _sections().get(code)

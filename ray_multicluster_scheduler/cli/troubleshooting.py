"""What troubleshooting.md says of a code; the same text is a page of the documentation."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_SECTION = re.compile(r"^### (?P<code>[A-Z_]+)\n\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_OTHER_WORDS = re.compile(r"^\| (?P<words>`[A-Z_]+`(?:, `[A-Z_]+`)*) \| (?P<codes>\[.*\)) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")

_EMPHASIS = re.compile(r"(?<![\w*`])\*{1,2}(?=\w)([^*`\n]*\w)\*{1,2}(?![\w*`])")
_FENCE = "```"
_FENCED = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_BETWEEN = re.compile(r"\n{2,}")
_HAS_LINES = re.compile(r"[-*+] |\d+\. |\||    ")


@cache
def _sections() -> dict[str, str]:
    return {one["code"]: _plain(one["text"]) for one in _SECTION.finditer(_text())}


@cache
def _other_words() -> dict[str, list[str]]:
    """What people say instead of a code, and the codes that may be meant."""
    rows = [(one["words"], _LINK.findall(one["codes"])) for one in _OTHER_WORDS.finditer(_text())]
    return {word: meant for words, meant in rows for word in words.replace("`", "").split(", ")}


def _text() -> str:
    return files(__package__).joinpath("troubleshooting.md").read_text(encoding="utf-8")


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
    """In plain sentences; of another word for some codes, what is said of these. None for what is neither."""
    meant = _other_words().get(code)
    if meant is None:
        return _sections().get(code)
    told = [f"{one}: {_sections()[one]}" for one in meant]
    return "\n\n".join([f"{code} is no code; {' or '.join(meant)} may be meant.", *told])

"""Extracts code blocks from the documentation, and compares their output with the text shown after them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block. ``shown`` is the expected output: the text block after it, if there is one."""

    page: str
    line: int
    language: str
    code: str
    shown: str = ""


def blocks(path: Path) -> Iterator[Block]:
    """The code blocks of a page, in order, without text blocks."""
    text, page = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    found = [(text.count("\n", 0, one.start()) + 1, one[1], one[2]) for one in _FENCE.finditer(text)]
    for at, (line, language, code) in enumerate(found):
        if language != "text":
            following = found[at + 1] if at + 1 < len(found) else (0, "", "")
            yield Block(page, line, language, code, following[2] if following[1] == "text" else "")


def prints(shown: str, printed: str) -> bool:
    """Does the output begin with the text shown, in which … matches anything?"""
    wanted = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.match(wanted, printed.strip(), re.DOTALL) is not None

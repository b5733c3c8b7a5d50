"""Blocks of code in our documents: taken from the text, and compared with what they print."""

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
    """``shown`` is what the block of text after it says that it prints, if there is one."""

    page: str
    line: int
    language: str
    code: str
    shown: str = ""


def blocks(path: Path) -> Iterator[Block]:
    """In their order, those of text left out."""
    text, page = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    found = [(text.count("\n", 0, one.start()) + 1, one[1], one[2]) for one in _FENCE.finditer(text)]
    for at, (line, language, code) in enumerate(found):
        if language != "text":
            following = found[at + 1] if at + 1 < len(found) else (0, "", "")
            yield Block(page, line, language, code, following[2] if following[1] == "text" else "")


def prints(shown: str, printed: str) -> bool:
    """Is it what is shown, where … stands for anything and what comes after the last line does not count?"""
    wanted = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.match(wanted, printed.strip(), re.DOTALL) is not None

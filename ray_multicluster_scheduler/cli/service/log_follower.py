"""What an attempt printed, as it is followed: what is told again is not written again."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.cli.layout.output import say
from ray_multicluster_scheduler.cli.service.client import path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

_KEPT = 2_000_000
"""So many of the last characters are remembered, which is more than a service keeps of a task's output."""


class Printed:
    """Whoever was cut off hears an attempt from its beginning again, and what it has written already is left out.

    That is compared, not only counted: a service that is killed has not written down the last seconds of what a task
    printed. Then what it tells is another text from some line on, and that line is new."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write, self._number = write, -1
        self._new_decoder = codecs.getincrementaldecoder("utf-8")
        self._forget(0)
        self.attempt(-1)

    def attempt(self, number: int) -> None:
        """It is told from its beginning now."""
        if number != self._number:
            self._number = number
            self._forget(0)
        self._shown = "".join(self._pieces)
        self._at, self._again = 0, bool(self._shown)
        self._decoder = self._new_decoder("replace")

    def begin_with(self, data: bytes, lines: int) -> None:
        """Write so many lines of the end of this; all of it is known then."""
        text = data.decode(errors="replace")
        last = last_lines(text, lines)
        if last:
            self._write(last)
        self._keep(text)
        self.attempt(self._number)

    def hear(self, piece: bytes) -> bool:
        """Was there anything new in it?"""
        text = self._decoder.decode(piece)
        again = ""
        if self._again:
            again, text = self._news(text)
        if text:
            self._keep(text)
            self._write(again + text)
        return bool(text)

    def _news(self, text: str) -> tuple[str, str]:
        """The beginning of a line that is to be written once more, and what of this text is new."""
        forgotten = min(len(text), max(0, self._dropped - self._at))  # it is taken to be as it was
        self._at, text = self._at + forgotten, text[forgotten:]
        place = self._at - self._dropped
        if self._shown.startswith(text, place):
            self._at += len(text)
            self._again = place + len(text) < len(self._shown)
            return "", ""
        pairs = zip(text, self._shown[place : place + len(text)], strict=False)
        same = next((at for at, (new, old) in enumerate(pairs) if new != old), len(self._shown) - place)
        place, self._again = place + same, False
        if place == len(self._shown):
            return "", text[same:]
        line = self._shown[self._shown.rfind("\n", 0, place) + 1 : place]
        self._forget(self._dropped)
        self._keep(self._shown[:place])
        return ("" if self._shown.endswith("\n") else "\n") + line, text[same:]

    def _forget(self, dropped: int) -> None:
        """``dropped`` characters were before what is remembered from now on."""
        self._pieces: list[str] = []
        self._size, self._dropped = 0, dropped

    def _keep(self, text: str) -> None:
        self._pieces.append(text)
        self._size += len(text)
        if self._size > 2 * _KEPT:
            whole, gone = "".join(self._pieces), self._size - _KEPT
            self._pieces, self._size, self._dropped = [whole[gone:]], _KEPT, self._dropped + gone


def last_lines(text: str, lines: int | None) -> str:
    """So many of them, from the end; None: all."""
    if lines is None:
        return text
    parts = re.findall(r"[^\n]*\n|[^\n]+", text)
    return "".join(parts[max(0, len(parts) - lines) :])


def said_so_far(service: Service, item_id: str, told: bytes) -> str:
    """What it printed; where that is nothing, since it has not started, this is said."""
    if not told:
        item = service.get(path_of("items", item_id))
        if item["attempt"] == 0:
            say(f"{item_id} has printed nothing: it is {item['state']}, and has not started")
    return told.decode(errors="replace")

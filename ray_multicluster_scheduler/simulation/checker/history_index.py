"""Story: a history, sorted by what its lines tell, so that a judge reads only what concerns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.simulation.history import Fed, Line, Setup, Told


class Entry(NamedTuple):
    """``what`` is the event of a Fed line, the instruction of a Told line, and else the line itself."""

    number: int
    at: float
    what: Any


class Story:
    """Read once, for all judges."""

    def __init__(self, history: Sequence[Line]) -> None:
        self.entries = entries = [
            Entry(
                number, line.at, line.event if type(line) is Fed else line.instruction if type(line) is Told else line
            )
            for number, line in enumerate(history)
        ]
        self._by_kind: dict[type, list[Entry]] = {}
        for entry in entries:
            self._by_kind.setdefault(type(entry.what), []).append(entry)
        first = history[0] if history and isinstance(history[0], Setup) else Setup(0.0, {}, ())
        self.clusters = first.clusters
        self.settings = Settings(**first.settings)

    def some(self, *kinds: type) -> list[Entry]:
        """Lines of these kinds, in their order."""
        found = [entry for kind in kinds for entry in self._by_kind.get(kind, ())]
        if len(kinds) > 1:
            found.sort()
        return found

    @property
    def end(self) -> Entry:
        """The last line."""
        return self.entries[-1] if self.entries else Entry(0, 0.0, None)

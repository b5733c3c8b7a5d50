"""The base classes of the checker's properties (invariants of a run), the index of a history, and violations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Continue
from ray_multicluster_scheduler.simulation.checker.history_state import HistoryState
from ray_multicluster_scheduler.simulation.history import EventHandled, HistoryLine, InstructionIssued, RunSetup


@dataclass(frozen=True, slots=True)
class Violation:
    """A line at which a property does not hold, counted from 0; the last line, if something never happened."""

    property: str
    line: int
    at: float
    sentence: str

    def __str__(self) -> str:
        return f"{self.property}: line {self.line}, at {self.at:g}: {self.sentence}"


class Entry(NamedTuple):
    """A history line; ``content`` is its event or instruction, and for other lines the line itself."""

    line: int
    at: float
    content: Any


class HistoryIndex:
    """The entries of a history by type, so that a property reads only those that concern it."""

    def __init__(self, history: Sequence[HistoryLine]) -> None:
        self.entries = [Entry(number, line.at, _content(line)) for number, line in enumerate(history)]
        self._by_type: dict[type, list[Entry]] = {}
        for entry in self.entries:
            self._by_type.setdefault(type(entry.content), []).append(entry)
        first = history[0] if history and isinstance(history[0], RunSetup) else RunSetup(0.0, {}, ())
        self.clusters, self.pools = first.clusters, first.pools
        self.settings = Settings(**first.settings)

    def of_types(self, *types: type) -> list[Entry]:
        """The entries with content of these types, in order."""
        found = [entry for kind in types for entry in self._by_type.get(kind, ())]
        if len(types) > 1:
            found.sort()
        return found

    @property
    def end(self) -> Entry:
        """The last entry."""
        return self.entries[-1] if self.entries else Entry(0, 0.0, None)


def _content(line: HistoryLine) -> Any:
    if type(line) is EventHandled:
        return line.event
    return line.instruction if type(line) is InstructionIssued else line


class Property(ABC):
    """A guarantee and its check. An instance checks one history; ``found`` collects the violations."""

    name: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def judge(self, history: Sequence[HistoryLine]) -> list[Violation]:
        """Check this property alone; an empty list means that it holds."""
        self.check(HistoryIndex(history), history)
        return self.found

    @abstractmethod
    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        """Collect the violations."""

    def report(self, entry: Entry, sentence: str) -> None:
        self.found.append(Violation(self.name, entry.line, entry.at, sentence))


class StateProperty(Property):
    """A property that is checked line by line against the state that the lines so far imply."""

    def check(self, index: HistoryIndex, history: Sequence[HistoryLine]) -> None:
        self.check_index(index)
        check_states(index, history, [self])

    def check_index(self, index: HistoryIndex) -> None:
        """The part of the check that needs no state."""

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        """Called before this line is applied to the state."""

    def after_answer(self, entry: Entry, state: HistoryState) -> None:
        """Called after the whole answer to an event, unless it ends with Continue."""


def check_states(index: HistoryIndex, history: Sequence[HistoryLine], properties: Sequence[StateProperty]) -> None:
    """Check several properties in one walk through the history."""
    state = HistoryState(index.settings, index.clusters, index.pools)
    before_line = [one for one in properties if type(one).before_line is not StateProperty.before_line]
    after_answer = [one for one in properties if type(one).after_answer is not StateProperty.after_answer]
    answered: Entry | None = None

    def finish_answer() -> None:
        if answered is not None:
            for one in after_answer:
                one.after_answer(answered, state)

    for line, entry in zip(history, index.entries, strict=True):
        if type(line) is not InstructionIssued:
            finish_answer()
            answered = entry if type(line) is EventHandled else None
        elif type(entry.content) is Continue:
            answered = None
        elif answered is not None:
            answered = entry
        for one in before_line:
            one.before_line(entry, state)
        state.apply(entry.at, entry.content)
    finish_answer()


def is_new_attempt(persist: Any, state: HistoryState) -> bool:
    """Does this Persist instruction place an item, so that it gets a new attempt?"""
    step = persist.transition
    item = state.items.get(step.task_id)
    return item is not None and step.attempt > item.attempt

"""The base classes of the checker's properties, the index of a history, and violations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Continue
from ray_multicluster_scheduler.simulation.checker.history_state import Book
from ray_multicluster_scheduler.simulation.history import EventHandled, HistoryLine, InstructionIssued, RunSetup


@dataclass(frozen=True, slots=True)
class Violation:
    """``line`` counts the lines of the history from 0; the last one, where something never came."""

    property: str
    line: int
    at: float
    sentence: str

    def __str__(self) -> str:
        return f"{self.property}: line {self.line}, at {self.at:g}: {self.sentence}"


class Entry(NamedTuple):
    """``what`` is the event of a Fed line, the instruction of a Told line, and else the line itself."""

    number: int
    at: float
    what: Any


class Story:
    """Read once, for all judges."""

    def __init__(self, history: Sequence[HistoryLine]) -> None:
        self.entries = entries = [
            Entry(
                number,
                line.at,
                line.event
                if type(line) is EventHandled
                else line.instruction
                if type(line) is InstructionIssued
                else line,
            )
            for number, line in enumerate(history)
        ]
        self._by_kind: dict[type, list[Entry]] = {}
        for entry in entries:
            self._by_kind.setdefault(type(entry.what), []).append(entry)
        first = history[0] if history and isinstance(history[0], RunSetup) else RunSetup(0.0, {}, ())
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


class Property(ABC):
    """One per guarantee. A judge reads lines only, and is used for one history."""

    name: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def judge(self, history: Sequence[HistoryLine]) -> list[Violation]:
        """Where it does not hold; nothing if it holds."""
        self.read(Story(history), history)
        return self.found

    @abstractmethod
    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        """Collect the violations."""

    def accuse(self, entry: Entry, sentence: str) -> None:
        self.found.append(Violation(self.name, entry.number, entry.at, sentence))


class BookJudge(Property):
    """One that looks at each line in the light of what is known by then."""

    def read(self, story: Story, history: Sequence[HistoryLine]) -> None:
        self.beside_the_book(story)
        replay(story, history, [self])

    def beside_the_book(self, story: Story) -> None:
        """What it judges without it."""

    def see(self, entry: Entry, book: Book) -> None:
        """Before this line is entered into the book."""

    def settled(self, entry: Entry, book: Book) -> None:
        """After the whole answer to an event, unless the machine asked to go on."""


def replay(story: Story, history: Sequence[HistoryLine], judges: Sequence[BookJudge]) -> None:
    """One book for all of them."""
    book = Book(story.settings, story.clusters)
    seeing = [one for one in judges if type(one).see is not BookJudge.see]
    settling = [one for one in judges if type(one).settled is not BookJudge.settled]
    answered: Entry | None = None
    for line, entry in zip(history, story.entries, strict=True):
        if type(line) is EventHandled or type(line) is not InstructionIssued:
            if answered is not None:
                _settle(settling, answered, book)
            answered = entry if type(line) is EventHandled else None
        elif type(entry.what) is Continue:
            answered = None
        elif answered is not None:
            answered = entry
        for judge in seeing:
            judge.see(entry, book)
        book.enter(entry.at, entry.what)
    if answered is not None:
        _settle(settling, answered, book)


def _settle(judges: Sequence[BookJudge], entry: Entry, book: Book) -> None:
    for judge in judges:
        judge.settled(entry, book)


def is_placed(what: Any, book: Book) -> bool:
    """Is this the line by which an item gets a new attempt?"""
    step = what.transition
    item = book.items.get(step.task_id)
    return item is not None and step.attempt > item.attempt

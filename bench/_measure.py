"""Taking turns: every contender once per round, so that what disturbs the machine disturbs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench._contenders import ContenderFailed
from bench._parts import Part, Request


class Asked(Protocol):
    """What can be asked to carry out a request; see ``_contenders.Contender``."""

    def start(self) -> None: ...
    def ask(self, do: str, /, **numbers: int) -> Any: ...


@dataclass
class Figures:
    """What came out of one part: a figure per contender and round, and why some have fewer."""

    part: Part
    rounds: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def measure(part: Part, contenders: Mapping[str, Asked], rounds: int, say: Callable[[str], None]) -> Figures:
    """A B C D, D C B A, …: nobody always follows the same one, who may leave the machine busy for a moment. One that
    fails is out for the rest of this part, and the reason is kept."""
    figures = Figures(part, {name: [] for name in part.turns})
    for number in range(1, rounds + 1):
        turns = list(part.turns.items())
        for name, request in turns if number % 2 else reversed(turns):
            if name in figures.errors:
                continue
            try:
                figure = _turn(contenders[name], part, request)
            except ContenderFailed as error:
                figures.errors[name] = f"round {number}: {error}"
                say(f"{part.name} {number}/{rounds} {name}: {error}")
                continue
            figures.rounds[name].append(figure)
            say(f"{part.name} {number}/{rounds} {name}: {figure:.4g} {part.unit}")
    _finish(part, contenders, figures)
    return figures


def _turn(contender: Asked, part: Part, request: Request) -> float:
    contender.start()  # the first time, or again after it failed in another part
    for step in part.warm_up:
        _ask(contender, step)
    return float(_ask(contender, request))


def _finish(part: Part, contenders: Mapping[str, Asked], figures: Figures) -> None:
    if part.finish is None:
        return
    for name in part.turns:
        if name in figures.errors:
            continue  # whoever failed may be gone, and says so once
        try:
            _ask(contenders[name], part.finish)
        except ContenderFailed as error:
            figures.errors[name] = f"at its end: {error}"


def _ask(contender: Asked, request: Request) -> Any:
    return contender.ask(request.do, **request.numbers)

"""Measure all contenders in turns, once per round each, so that disturbances of the machine affect all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench._contenders import ContenderFailed
from bench._parts import Part, Request


class Measurable(Protocol):
    """Carries out requests; see ``_contenders.Contender``."""

    def start(self) -> None: ...
    def ask(self, do: str, /, **numbers: int) -> Any: ...


@dataclass
class Figures:
    """The results of one part: a figure per contender and round, and the errors of contenders that have fewer."""

    part: Part
    rounds: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def measure(part: Part, contenders: Mapping[str, Measurable], rounds: int, say: Callable[[str], None]) -> Figures:
    """Measure in the order A B C D, D C B A, …, since a contender may leave the machine busy for a moment. One that
    fails is
    left out for the rest of this part, and its error is recorded."""
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


def _turn(contender: Measurable, part: Part, request: Request) -> float:
    contender.start()  # at first, and again after it failed in another part
    for step in part.warm_up:
        _ask(contender, step)
    return float(_ask(contender, request))


def _finish(part: Part, contenders: Mapping[str, Measurable], figures: Figures) -> None:
    if part.finish is None:
        return
    for name in part.turns:
        if name in figures.errors:
            continue  # a contender that failed may have ended, and reports that once
        try:
            _ask(contenders[name], part.finish)
        except ContenderFailed as error:
            figures.errors[name] = f"at its end: {error}"


def _ask(contender: Measurable, request: Request) -> Any:
    return contender.ask(request.do, **request.numbers)

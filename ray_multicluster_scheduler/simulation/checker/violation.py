"""Violation: one place in a history where a property does not hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """``line`` counts the lines of the history from 0; the last one, where something never came."""

    property: str
    line: int
    at: float
    sentence: str

    def __str__(self) -> str:
        return f"{self.property}: line {self.line}, at {self.at:g}: {self.sentence}"

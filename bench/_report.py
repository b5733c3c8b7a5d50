"""Turn figures into medians, ratios inside the run, and a verdict on each floor and aim."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bench._measure import Figures
from bench._parts import PROMISES, Promise

_YARDSTICKS = ("ray_client", "native", "socket")


def report(measured: Sequence[Figures]) -> dict[str, Any]:
    """The whole run as plain data."""
    parts = {figures.part.name: _part(figures) for figures in measured}
    promises = [_verdict(promise, parts[promise.part]) for promise in PROMISES if promise.part in parts]
    return {
        "parts": parts,
        "floors": [one for one in promises if one["kind"] == "floor"],
        "aims": [one for one in promises if one["kind"] == "aim"],
        "errors": [
            {"part": figures.part.name, "contender": name, "error": text}
            for figures in measured
            for name, text in figures.errors.items()
        ],
    }


def table(document: dict[str, Any]) -> str:
    """The report as printed text."""
    lines: list[str] = []
    for name, part in document["parts"].items():
        lines += [f"{name}: {part['title']}", *_rows(part), ""]
    for bound in ("floors", "aims"):
        lines += [f"{bound}:", *(_promise_row(one) for one in document[bound]), ""]
    lines += [f"ERROR {one['part']}, {one['contender']}: {one['error']}" for one in document["errors"]]
    return "\n".join(lines).rstrip()


def _part(figures: Figures) -> dict[str, Any]:
    medians = {name: statistics.median(rounds) for name, rounds in figures.rounds.items() if rounds}
    return {
        "title": figures.part.title,
        "unit": figures.part.unit,
        "rounds": {name: [round(figure, 3) for figure in rounds] for name, rounds in figures.rounds.items()},
        "medians": {name: round(median, 3) for name, median in medians.items()},
        "ratios": {
            f"{name}/{against}": round(median / medians[against], 3)
            for against in _YARDSTICKS
            if against in medians
            for name, median in medians.items()
            if name != against
        },
    }


def _verdict(promise: Promise, part: dict[str, Any]) -> dict[str, Any]:
    ratio = part["ratios"].get(f"{promise.contender}/{promise.against}")
    return {"kind": promise.kind, "promise": str(promise), "ratio": ratio, "passed": promise.kept(ratio)}


def _rows(part: dict[str, Any]) -> Iterable[str]:
    yardsticks = [name for name in _YARDSTICKS if name in part["medians"]]
    yield f"  {'':18}{part['unit']:>12}" + "".join(f"{'x ' + name:>14}" for name in yardsticks) + "   rounds"
    for name, rounds in part["rounds"].items():
        median = part["medians"].get(name)
        ratios = [part["ratios"].get(f"{name}/{against}") for against in yardsticks]
        cells = f"{_number(median):>12}" + "".join(f"{_number(ratio):>14}" for ratio in ratios)
        yield f"  {name:18}{cells}   {' '.join(_number(figure) for figure in rounds) or 'no figure'}"


def _promise_row(verdict: dict[str, Any]) -> str:
    outcome = "PASS" if verdict["passed"] else "MISS"
    return f"  {outcome}  {verdict['promise']}  (here {_number(verdict['ratio'])})"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

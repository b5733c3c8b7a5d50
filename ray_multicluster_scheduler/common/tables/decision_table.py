"""A placement decision for people: one line per cluster. `plan`, `explain`, the CLI and error messages use it.

It takes a decision as an object or as the data that `to_dict` makes of it, and needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ray_multicluster_scheduler.common.control_characters import escaped

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.model.decision import CandidateReport, Rejection, SchedulingDecision

TITLES = ("CLUSTER", "VERDICT", "RANKS", "SCORES", "WHY")
_MAYBE = ("RANKS", "SCORES")
NOTHING = "–"
NEVER = "never"
MOST_NAMED = 3
"""Clusters that a sentence speaks of."""

FULL = frozenset({"NO_CAPACITY", "ABOVE_THRESHOLD", "MAX_IN_FLIGHT", "MAX_RUNNING_JOBS", "SERIAL"})
"""Codes of a cluster that takes more when something there has ended."""


DrawTable = Callable[[Sequence[str], Sequence[Sequence[object]]], str]
"""Titles and rows as text; `columns` is one, for where there is room."""


class Line(NamedTuple):
    """One cluster. ``verdict`` is chosen, fits, waits (no for now) or never (no for good)."""

    cluster: str
    verdict: str
    ranks: str
    scores: str
    why: str


def columns(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Plain text in columns; the last one is not filled up."""
    texts = [[escaped(str(cell)) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(titles) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in texts
    )


def decision_lines(decision: SchedulingDecision | Mapping[str, Any]) -> list[Line]:
    """One line per candidate, in the order of the decision."""
    data = decision if isinstance(decision, Mapping) else decision.to_dict()
    return [_line(row, chosen=row["cluster"] == data["cluster"]) for row in data["candidates"]]


def decision_text(decision: SchedulingDecision | Mapping[str, Any], draw: DrawTable = columns) -> str:
    """The decision in one sentence, and the lines below it as columns. What they say is not said twice."""
    data = decision if isinstance(decision, Mapping) else decision.to_dict()
    lines = decision_lines(data)
    is_told = any(one["code"] == data["code"] for row in data["candidates"] for one in row["rejections"])
    never = fails_at_once(lines)
    outcome = "no cluster can take it, and waiting would not help" if never else "it waits; each cluster says why"
    head = f"{data['code']}: {outcome if is_told else escaped(data['sentence'])}"
    if data.get("unblocked_by"):
        helps = "Only this would help:" if never else "It can go on when"
        head += f"\n{helps} {escaped(data['unblocked_by'])}."
    return f"{head}\n{lines_text(lines, draw)}" if lines else head


def lines_text(lines: Sequence[Line], draw: DrawTable = columns) -> str:
    """The lines as columns. Where no cluster has a rank, or a score, there is no such column."""
    shown = [at for at, title in enumerate(TITLES) if title not in _MAYBE or any(one[at] != NOTHING for one in lines)]
    return draw([TITLES[at] for at in shown], [[one[at] for at in shown] for one in lines])


def fails_at_once(lines: Sequence[Line]) -> bool:
    """Does every cluster say no for good?"""
    return bool(lines) and all(line.verdict == NEVER for line in lines)


def reason_lines(candidates: Sequence[CandidateReport]) -> str:
    """Why each cluster refuses, for an error message; beside a reason that is final, passing ones are noise."""
    lines = []
    for row in candidates:
        final = [one for one in row.rejections if one.permanent]
        lines.append(f"  {row.cluster}: {'; '.join(one.sentence for one in final or row.rejections)}")
    return "\n".join(lines)


def among(candidates: Sequence[CandidateReport]) -> str:
    """What became of the others, where one of several clusters was chosen: how many fit, or why no other does. One that
    is full would fit at another time."""
    fit = sum(not row.rejections for row in candidates)
    if fit > 1:
        return f"chosen among {fit} clusters that fit"
    others = [row for row in candidates if row.rejections]
    full = any(all(one.code in FULL for one in row.rejections) for row in others)
    named = [f"{row.cluster}: {gravest(row).sentence.removesuffix('.')}" for row in others[:MOST_NAMED]]
    more = [f"and {len(others) - MOST_NAMED} more"] if len(others) > MOST_NAMED else []
    return f"the only one {'with room' if full else 'that fits'} ({'; '.join(named + more)})"


def gravest(row: CandidateReport) -> Rejection:
    """Of a cluster that says no: the first reason that is final, or else the first one."""
    return next((one for one in row.rejections if one.permanent), row.rejections[0])


def _line(row: Mapping[str, Any], *, chosen: bool) -> Line:
    rejections = row["rejections"]
    if chosen:
        verdict = "chosen"
    elif not rejections:
        verdict = "fits"
    else:
        verdict = NEVER if any(one["permanent"] for one in rejections) else "waits"
    ranks = ", ".join(f"{name} {value}" for name, value in row["ranks"].items())
    why = "; ".join(f"{one['code']}: {one['sentence']}" for one in rejections).replace(".; ", "; ")
    return Line(row["cluster"], verdict, ranks or NOTHING, _scores(row) or NOTHING, why or "passes every filter")


def _scores(row: Mapping[str, Any]) -> str:
    """Each score as it is, and as it is shown raw by those that have such a form; then what they add up to."""
    raw = row["raw_scores"]
    shown = [
        f"{name} {score:.3f}{f' ({raw[name]:.1f})' if name in raw else ''}" for name, score in row["scores"].items()
    ]
    if len(shown) > 1 and row["total"] is not None:
        shown.append(f"total {row['total']:.3f}")
    return ", ".join(shown)

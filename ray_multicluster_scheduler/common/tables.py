"""Tables of placement decisions and other facts, as text and as HTML. `plan`, `explain` and error messages use them.

A decision may be given as an object or as the data of its `to_dict`. Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from ray_multicluster_scheduler.common.control_characters import escaped

if TYPE_CHECKING:
    from ray_multicluster_scheduler.common.model.decision import CandidateReport, Rejection, SchedulingDecision

TITLES = ("CLUSTER", "VERDICT", "RANKS", "SCORES", "WHY")
_OPTIONAL = ("RANKS", "SCORES")
NOTHING = "–"
NEVER = "never"
MAX_NAMED = 3
"""The most clusters that a sentence names."""

FULL = frozenset({"NO_CAPACITY", "ABOVE_THRESHOLD", "MAX_IN_FLIGHT", "MAX_RUNNING_JOBS", "SERIAL"})
"""Rejection codes that end when other items on the cluster end."""


DrawTable = Callable[[Sequence[str], Sequence[Sequence[object]]], str]
"""Draws titles and rows as text; :func:`columns` is one that needs no fixed width."""


class CandidateRow(NamedTuple):
    """One candidate cluster. ``verdict``: chosen, fits, waits (rejected for now) or never (rejected permanently)."""

    cluster: str
    verdict: str
    ranks: str
    scores: str
    why: str


def columns(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Plain text in aligned columns; the last column is not padded."""
    texts = [[escaped(str(cell)) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(titles) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in texts
    )


def pool_facts(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labels, pool and what protects it from preemption, as far as they are set: names and values for people."""
    facts = {
        "labels": ", ".join(f"{name}={text}" for name, text in (item.get("labels") or {}).items()),
        "pool": item.get("pool"),
        "preemptible": None if item.get("preemptible") is None else "yes" if item["preemptible"] else "no",
        "runs at least": f"{item['min_runtime_s']:g} s" if item.get("min_runtime_s") else None,
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def decision_rows(decision: SchedulingDecision | Mapping[str, Any]) -> list[CandidateRow]:
    """One row per candidate, in the order of the decision."""
    data = decision if isinstance(decision, Mapping) else decision.to_dict()
    return [_candidate_row(row, chosen=row["cluster"] == data["cluster"]) for row in data["candidates"]]


def decision_text(decision: SchedulingDecision | Mapping[str, Any], draw: DrawTable = columns) -> str:
    """The decision in one sentence, above a table of the candidates. A reason in the table is not repeated."""
    data = decision if isinstance(decision, Mapping) else decision.to_dict()
    lines = decision_rows(data)
    in_table = any(one["code"] == data["code"] for row in data["candidates"] for one in row["rejections"])
    never = fails_at_once(lines)
    outcome = (
        "no cluster can take it, and waiting would not help"
        if never
        else "it waits; the reason of each cluster is below"
    )
    head = f"{data['code']}: {outcome if in_table else escaped(data['sentence'])}"
    if data.get("unblocked_by"):
        helps = "Only this would help:" if never else "It can continue when"
        head += f"\n{helps} {escaped(data['unblocked_by'])}."
    head += "".join(f"\n{line}" for line in pool_lines(data))
    return f"{head}\n{rows_text(lines, draw)}" if lines else head


def pool_lines(decision: Mapping[str, Any]) -> list[str]:
    """What is used of the quota for which the item waits, one line for each resource."""
    return [f"Quota of its pool: {escaped(one['sentence'])}" for one in decision.get("pool_use") or ()]


def rows_text(rows: Sequence[CandidateRow], draw: DrawTable = columns) -> str:
    """The rows as columns, without the columns of ranks and scores if no cluster has any."""
    shown = [at for at, title in enumerate(TITLES) if title not in _OPTIONAL or any(one[at] != NOTHING for one in rows)]
    return draw([TITLES[at] for at in shown], [[one[at] for at in shown] for one in rows])


def fails_at_once(lines: Sequence[CandidateRow]) -> bool:
    """Whether every cluster rejects permanently, so that the item fails at once."""
    return bool(lines) and all(line.verdict == NEVER for line in lines)


def reason_lines(candidates: Sequence[CandidateReport]) -> str:
    """The reasons of all clusters, for an error message: its permanent reasons, or else all of them."""
    lines = []
    for row in candidates:
        final = [one for one in row.rejections if one.permanent]
        lines.append(f"  {row.cluster}: {'; '.join(one.sentence for one in final or row.rejections)}")
    return "\n".join(lines)


def compare_to_others(candidates: Sequence[CandidateReport]) -> str:
    """Compares the other clusters to the chosen one: how many fit, or why none does. A full cluster would fit at
    another time."""
    fit = sum(not row.rejections for row in candidates)
    if fit > 1:
        return f"chosen among {fit} clusters that fit"
    others = [row for row in candidates if row.rejections]
    full = any(all(one.code in FULL for one in row.rejections) for row in others)
    named = [f"{row.cluster}: {main_rejection(row).sentence.removesuffix('.')}" for row in others[:MAX_NAMED]]
    more = [f"and {len(others) - MAX_NAMED} more"] if len(others) > MAX_NAMED else []
    return f"the only one {'with room' if full else 'that fits'} ({'; '.join(named + more)})"


def main_rejection(row: CandidateReport) -> Rejection:
    """The first permanent rejection of a cluster, or else the first one."""
    return next((one for one in row.rejections if one.permanent), row.rejections[0])


def undeclared_load(count: int) -> str:
    """Explains the effect of items that hold no resources on the scores of their cluster."""
    return f"{count} {'item that declares' if count == 1 else 'items that declare'} no resources counted as load"


def _candidate_row(row: Mapping[str, Any], *, chosen: bool) -> CandidateRow:
    rejections = row["rejections"]
    if chosen:
        verdict = "chosen"
    elif not rejections:
        verdict = "fits"
    else:
        verdict = NEVER if any(one["permanent"] for one in rejections) else "waits"
    ranks = ", ".join(f"{name} {value}" for name, value in row["ranks"].items())
    why = "; ".join(f"{one['code']}: {one['sentence']}" for one in rejections).replace(".; ", "; ")
    if not why:
        counted = row.get("undeclared", 0)
        why = f"passes every filter; {undeclared_load(counted)}" if counted else "passes every filter"
    return CandidateRow(row["cluster"], verdict, ranks or NOTHING, _scores(row) or NOTHING, why)


def _scores(row: Mapping[str, Any]) -> str:
    """Each score, with its raw value if it has one; then the total."""
    raw = row["raw_scores"]
    shown = [
        f"{name} {score:.3f}{f' ({raw[name]:.1f})' if name in raw else ''}" for name, score in row["scores"].items()
    ]
    if len(shown) > 1 and row["total"] is not None:
        shown.append(f"total {row['total']:.3f}")
    return ", ".join(shown)


# ---- HTML, for notebooks. Text may come from users: all of it is escaped here, and only here.

_CELL = ' style="text-align: left; vertical-align: top; white-space: pre-wrap"'


def html_facts(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A table of names and values of one thing, without those that are None or empty."""
    shown = [(name, value) for name, value in rows if value is not None and value != ""]
    lines = "".join(f"<tr><th{_CELL}>{_html(name)}</th><td{_CELL}>{_html(value)}</td></tr>" for name, value in shown)
    return f"<table>{_caption(title)}{lines}</table>"


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with one line per row; None is shown as a dash."""
    head = "".join(f"<th{_CELL}>{_html(name)}</th>" for name in columns)
    lines = "".join(f"<tr>{''.join(f'<td{_CELL}>{_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{_caption(title)}<tr>{head}</tr>{lines}</table>"


def decision_html(decision: SchedulingDecision) -> str:
    """The decision and its candidates."""
    facts = [
        ("cluster", decision.cluster),
        ("code", decision.code),
        ("sentence", decision.sentence),
        ("continues when", decision.unblocked_by),
    ]
    return html_facts("Decision", facts) + candidates_html(decision)


def candidates_html(decision: SchedulingDecision | Mapping[str, Any]) -> str:
    """The candidates of a decision; empty if there are none."""
    rows = decision_rows(decision)
    return html_table("Clusters", [one.lower() for one in TITLES], rows) if rows else ""


def _caption(title: str) -> str:
    return f'<caption style="text-align: left">{_html(title)}</caption>' if title else ""


def _html(value: object) -> str:
    return "–" if value is None else escape(str(value), quote=True)

"""What a trouble did to a fleet under load, and whether it may have. Pure: it only reads what was written down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.support.chaos_history import History, violations

NOT_NOTICED = "not noticed"
LOST_OR_CRASHED = frozenset({"ClusterLostError", "WorkerCrashedError"})
"""What work may end with that never raises by itself, where something of its cluster was ended or stood still."""


@dataclass(frozen=True)
class Item:
    """One of the load: when it was handed in, what became of it. ``pinned``: it is for the troubled cluster only."""

    id: str
    submitted: float
    pinned: bool
    ended: float | None = None
    state: str | None = None
    error: str | None = None
    sentence: str = ""
    cluster: str | None = None


@dataclass
class Ordeal:
    """One trouble from its first to its last moment. Times are those of one machine's clock.

    ``noticed`` is when the troubled cluster was first told to be anything but UP, and ``told`` as what, in turn;
    ``usable`` when the first item ended well that was accepted after ``ended``.
    """

    trouble: str
    cluster: str
    began: float
    ended: float
    noticed: float | None = None
    told: str = ""
    usable: float | None = None
    remark: str = ""
    may_fail_with: frozenset[str] = frozenset()
    items: list[Item] = field(default_factory=list)


def broken(ordeal: Ordeal, history: History) -> list[str]:
    """Every promise that was broken to the items of this trouble; ``history`` may be that of many."""
    ids = {item.id for item in ordeal.items}
    own = History(
        acknowledged=ids,
        answers={item.id: item.state for item in ordeal.items if item.state is not None},
        stored={item: stored for item, stored in history.stored.items() if item in ids},
        notes=[note for note in history.notes if note.item in ids],
    )
    said = [*violations(own), *(sentence for item in ordeal.items for sentence in _of_one(item, ordeal))]
    if not ordeal.items:
        said.append(f"{ordeal.trouble}: there was no work, so nothing was shown")
    if ordeal.usable is None:
        said.append(f"{ordeal.trouble}: {ordeal.cluster} was never usable again")
    return said


def _of_one(item: Item, ordeal: Ordeal) -> Iterable[str]:
    if item.state is None:
        yield f"{item.id} was accepted, and its program was never told how it ended"
    elif item.state == "FAILED" and item.error not in ordeal.may_fail_with:
        yield f"{item.id} failed with {item.error} ({item.sentence}), which {ordeal.trouble} does not explain"
    elif item.state == "FAILED" and ordeal.cluster not in item.sentence:
        yield f"{item.id} failed, and its reason does not name {ordeal.cluster}: {item.sentence}"
    elif item.state == "CANCELLED":
        yield f"{item.id} was cancelled, and nobody asked for that"
    if item.pinned and item.cluster not in (None, ordeal.cluster):
        yield f"{item.id} was for {ordeal.cluster} only, and was on {item.cluster}"


HEADINGS = (
    "trouble",
    "lasted",
    "noticed after",
    "told as",
    "usable again after",
    "median item, before → during",
    "items",
    "failed, with",
    "broken promises",
)


def row(ordeal: Ordeal, promises: Sequence[str]) -> tuple[str, ...]:
    """One line of the table. What was not measured is said so, never left to be taken for good."""
    failed = [item.error or "?" for item in ordeal.items if item.state == "FAILED"]
    before = _median(item for item in ordeal.items if item.submitted < ordeal.began)
    during = _median(item for item in ordeal.items if item.submitted >= ordeal.began)
    return (
        ordeal.trouble + (f" ({ordeal.remark})" if ordeal.remark else ""),
        _seconds(ordeal.ended - ordeal.began),
        NOT_NOTICED if ordeal.noticed is None else _seconds(ordeal.noticed - ordeal.began),
        ordeal.told or "–",
        "never" if ordeal.usable is None else _seconds(ordeal.usable - ordeal.ended),
        f"{before} → {during}",
        str(len(ordeal.items)),
        ", ".join(f"{failed.count(one)} × {one}" for one in sorted(set(failed))) or "none",
        str(len(promises)),
    )


def table(rows: Iterable[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _median(items: Iterable[Item]) -> str:
    took = [item.ended - item.submitted for item in items if item.ended is not None and item.state == "SUCCEEDED"]
    return _seconds(median(took)) if took else "none ended well"


def _seconds(time: float) -> str:
    return f"{time:.1f} s"

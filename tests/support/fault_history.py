"""Check and tabulate the effects of a network fault on a fleet under load, from recorded data only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.support.chaos_history import History, violations

NOT_NOTICED = "not noticed"
LOST_OR_CRASHED = frozenset({"ClusterLostError", "WorkerCrashedError"})
"""Errors with which work may end when a process of its cluster was killed or stopped."""


@dataclass(frozen=True)
class Item:
    """An item of the load, with its submission and its end. ``pinned``: it may run on the impaired cluster only."""

    id: str
    submitted: float
    pinned: bool
    ended: float | None = None
    state: str | None = None
    error: str | None = None
    sentence: str = ""
    cluster: str | None = None


@dataclass
class FaultRun:
    """One fault and its effects. All times are of one machine's clock.

    ``noticed`` is when the impaired cluster was first reported as not UP, and ``states`` the reported states, in order;
    ``usable`` is when the first item succeeded that was accepted after ``ended``.
    """

    fault: str
    cluster: str
    began: float
    ended: float
    noticed: float | None = None
    states: str = ""
    usable: float | None = None
    remark: str = ""
    may_fail_with: frozenset[str] = frozenset()
    items: list[Item] = field(default_factory=list)


def violated(fault_run: FaultRun, history: History) -> list[str]:
    """The violated guarantees for the items of this fault, as sentences; ``history`` may have items of others."""
    ids = {item.id for item in fault_run.items}
    own = History(
        acknowledged=ids,
        answers={item.id: item.state for item in fault_run.items if item.state is not None},
        stored={item: stored for item, stored in history.stored.items() if item in ids},
        notes=[note for note in history.notes if note.item in ids],
    )
    found = [*violations(own), *(sentence for item in fault_run.items for sentence in _of_one(item, fault_run))]
    if not fault_run.items:
        found.append(f"{fault_run.fault}: there was no work, so the guarantees were not tested")
    if fault_run.usable is None:
        found.append(f"{fault_run.fault}: {fault_run.cluster} was never usable again")
    return found


def _of_one(item: Item, fault_run: FaultRun) -> Iterable[str]:
    if item.state is None:
        yield f"{item.id} was accepted, and its end was never reported to its program"
    elif item.state == "FAILED" and item.error not in fault_run.may_fail_with:
        yield f"{item.id} failed with {item.error} ({item.sentence}), which {fault_run.fault} does not explain"
    elif item.state == "FAILED" and fault_run.cluster not in item.sentence:
        yield f"{item.id} failed, and its reason does not name {fault_run.cluster}: {item.sentence}"
    elif item.state == "CANCELLED":
        yield f"{item.id} was cancelled without a request"
    if item.pinned and item.cluster not in (None, fault_run.cluster):
        yield f"{item.id} was for {fault_run.cluster} only, and was on {item.cluster}"


HEADINGS = (
    "fault",
    "lasted",
    "noticed after",
    "reported as",
    "usable again after",
    "median item, before → during",
    "items",
    "failed, with",
    "violations",
)


def row(fault_run: FaultRun, broken: Sequence[str]) -> tuple[str, ...]:
    """One line of the table. Missing measurements are named as such."""
    failed = [item.error or "?" for item in fault_run.items if item.state == "FAILED"]
    before = _median(item for item in fault_run.items if item.submitted < fault_run.began)
    during = _median(item for item in fault_run.items if item.submitted >= fault_run.began)
    return (
        fault_run.fault + (f" ({fault_run.remark})" if fault_run.remark else ""),
        _seconds(fault_run.ended - fault_run.began),
        NOT_NOTICED if fault_run.noticed is None else _seconds(fault_run.noticed - fault_run.began),
        fault_run.states or "–",
        "never" if fault_run.usable is None else _seconds(fault_run.usable - fault_run.ended),
        f"{before} → {during}",
        str(len(fault_run.items)),
        ", ".join(f"{failed.count(one)} × {one}" for one in sorted(set(failed))) or "none",
        str(len(broken)),
    )


def table(rows: Iterable[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _median(items: Iterable[Item]) -> str:
    took = [item.ended - item.submitted for item in items if item.ended is not None and item.state == "SUCCEEDED"]
    return _seconds(median(took)) if took else "none succeeded"


def _seconds(time: float) -> str:
    return f"{time:.1f} s"

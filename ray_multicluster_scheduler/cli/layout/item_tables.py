"""Items as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli.layout.output import facts_table, state_cell
from ray_multicluster_scheduler.cli.layout.table import MOST_OF_A_NAME, MOST_OF_A_SENTENCE, FittingTable
from ray_multicluster_scheduler.cli.layout.times import UNKNOWN, ago, length
from ray_multicluster_scheduler.common.control_characters import escaped_lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_ITEMS = ("ID", "KIND", "NAME", "OWNER", "STATE", "CLUSTER", "ATTEMPT", "SUBMITTED", "RAN")
_JOBS = ("JOB ID", "STATUS", "CLUSTER", "ATTEMPT", "SUBMITTED", "RAN", "ENTRYPOINT")
_ACTORS = ("ID", "NAME", "CLASS", "STATE", "CLUSTER", "ATTEMPT", "LIFETIME", "WHY")
_WAITING = ("ID", "POSITION", "WAITS", "KIND", "NAME", "OWNER", "PRIORITY", "STATE", "CODE", "WHY")
_END = "\n"
_WHY_IS_SEEN = {"WHY": 36}
_MOST = {**dict.fromkeys(("NAME", "CLASS", "ENTRYPOINT"), MOST_OF_A_NAME), "WHY": MOST_OF_A_SENTENCE}


def items_table(rows: Sequence[Mapping[str, Any]], now: float) -> FittingTable:
    """Rows of ``/api/v1/items``."""
    cells = [
        (
            row["id"],
            row["kind"],
            row["name"],
            row["owner"] or UNKNOWN,
            state_cell(row["state"]),
            row["cluster"] or UNKNOWN,
            row["attempt"],
            ago(row["submitted_at"], now),
            _ran(row["state"], row.get("started_at"), row["finished_at"], now),
        )
        for row in rows
    ]
    return FittingTable(
        _ITEMS,
        cells,
        cut=("NAME", "OWNER"),
        drop=("ATTEMPT", "OWNER", "KIND", "RAN", "NAME"),
        last=("SUBMITTED", "CLUSTER"),
        most=_MOST,
    )


def jobs_table(rows: Sequence[Mapping[str, Any]], now: float) -> FittingTable:
    """Rows of ``/api/v1/jobs``."""
    cells = [
        (
            row["job_id"],
            state_cell(row["status"]),
            row.get("cluster") or UNKNOWN,
            row.get("attempt", 0),
            ago(row.get("submitted_at"), now),
            _ran(row["status"], row.get("started_at"), row.get("finished_at"), now),
            row.get("entrypoint") or UNKNOWN,
        )
        for row in rows
    ]
    return FittingTable(_JOBS, cells, cut=("ENTRYPOINT",), drop=("ATTEMPT", "RAN", "SUBMITTED"), most=_MOST)


def actors_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    """Rows of ``/api/v1/actors``."""
    cells = [
        (
            row["id"],
            row["name"] or UNKNOWN,
            row.get("class") or UNKNOWN,
            state_cell(row["state"]),
            row["cluster"] or UNKNOWN,
            row["attempt"],
            row["lifetime"] or UNKNOWN,
            row["message"].partition("\n")[0],
        )
        for row in rows
    ]
    return FittingTable(_ACTORS, cells, cut=("NAME", "CLASS", "WHY"), drop=("LIFETIME", "ATTEMPT", "CLASS"), most=_MOST)


def waiting_table(rows: Sequence[Mapping[str, Any]], now: float) -> FittingTable:
    """What waits, of ``/api/v1/queue``. A code says it shortly, `rmcs explain` at length."""
    cells = [
        (
            row["id"],
            UNKNOWN if row.get("position") is None else row["position"],
            length(now - row.get("waiting_since", row["submitted_at"])),
            row["kind"],
            row["name"],
            row["owner"] or UNKNOWN,
            row["priority"],
            "HELD" if row["held"] and row["code"] != "HELD" else state_cell(row["state"]),
            row["code"] or UNKNOWN,
            row["sentence"].partition("\n")[0],
        )
        for row in rows
    ]
    return FittingTable(
        _WAITING,
        cells,
        cut=("NAME", "OWNER", "WHY"),
        drop=("PRIORITY", "KIND", "STATE", "OWNER", "NAME"),
        last=("POSITION", "WAITS", "WHY"),
        wanted=_WHY_IS_SEEN,
        most=_MOST,
    )


def item_picture(item: Mapping[str, Any], now: float) -> Group:
    """One item: a line for each thing that is known of it; then, if it failed, all that was said of that."""
    from rich.console import Group

    done = (item.get("outcome") or {}).get("completion") or {}
    said, failed = str(item.get("sentence") or ""), item["state"] != "SUCCEEDED"
    message = str(done.get("message") or "") if failed else ""
    lines: dict[str, object] = {
        "id": item["id"],
        "kind": item.get("kind"),
        "name": item.get("name"),
        "owner": item.get("owner"),
        "state": state_cell(item["state"]),
        "cluster": item.get("cluster"),
        "attempt": item.get("attempt"),
        "since": ago(item["at"], now) if "at" in item else None,
        "why": f"{item['code']}: {said.partition(_END)[0]}" if item.get("code") else None,
        "error": message.partition(_END)[0] if message != said else None,
        "what to do": done.get("next_step") if failed else None,
    }
    rest = [text.partition(_END)[2] for text in ((message,) if message == said else (said, message))]
    return Group(facts_table(lines), *_below(*rest), *_tracebacks(item))


def _tracebacks(item: Mapping[str, Any]) -> Iterator[Text | str]:
    """As the clusters wrote them: of the item, or of the one whose value it was to have."""
    outcome = item.get("outcome")
    while outcome:
        result, done = outcome.get("result") or {}, outcome["completion"]
        if result.get("traceback"):
            who = result.get("task_id") or done["task_id"]
            whose = "" if who == item["id"] else f" of {who}"
            yield from _below(f"Attempt {result['attempt']}{whose} on {done['cluster']}:\n{result['traceback']}")
        outcome = outcome.get("origin")


def _below(*texts: str) -> Iterator[Text | str]:
    """Lines as they are, however long: nothing of them is cut or folded."""
    from rich.text import Text

    for text in filter(str.strip, texts):
        yield from ("", Text(escaped_lines(text.rstrip()), no_wrap=True, overflow="ignore"))


def _ran(state: str, began: float | None, ended: float | None, now: float) -> str:
    """How long its last attempt ran, or has run so far; what it waited before is no part of that."""
    until = now if state == "RUNNING" else ended
    return UNKNOWN if began is None or until is None else length(until - began)

"""Items in tables: lists of items, jobs and actors, the queue, and all facts of one item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.cli.layout.output import facts_table, state_cell
from ray_multicluster_scheduler.cli.layout.table import MAX_NAME, MAX_SENTENCE, FittingTable
from ray_multicluster_scheduler.cli.layout.times import UNKNOWN, ago, duration
from ray_multicluster_scheduler.common.control_characters import escaped_lines

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_ITEMS = ("ID", "KIND", "NAME", "OWNER", "STATE", "CLUSTER", "ATTEMPT", "SUBMITTED", "RAN")
_JOBS = ("JOB ID", "STATUS", "CLUSTER", "ATTEMPT", "SUBMITTED", "RAN", "ENTRYPOINT")
_ACTORS = ("ID", "NAME", "CLASS", "STATE", "CLUSTER", "ATTEMPT", "LIFETIME", "WHY")
_WAITING = ("ID", "POSITION", "WAITS", "KIND", "NAME", "OWNER", "PRIORITY", "STATE", "CODE", "WHY")
_MAX_WIDTHS = {**dict.fromkeys(("NAME", "CLASS", "ENTRYPOINT"), MAX_NAME), "WHY": MAX_SENTENCE}


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
            _run_time(row["state"], row.get("started_at"), row["finished_at"], now),
        )
        for row in rows
    ]
    return FittingTable(
        _ITEMS,
        cells,
        cut=("NAME", "OWNER"),
        drop=("ATTEMPT", "OWNER", "KIND", "RAN", "NAME"),
        last=("SUBMITTED", "CLUSTER"),
        most=_MAX_WIDTHS,
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
            _run_time(row["status"], row.get("started_at"), row.get("finished_at"), now),
            row.get("entrypoint") or UNKNOWN,
        )
        for row in rows
    ]
    return FittingTable(_JOBS, cells, cut=("ENTRYPOINT",), drop=("ATTEMPT", "RAN", "SUBMITTED"), most=_MAX_WIDTHS)


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
            _first_line(row["message"]),
        )
        for row in rows
    ]
    return FittingTable(
        _ACTORS, cells, cut=("NAME", "CLASS", "WHY"), drop=("LIFETIME", "ATTEMPT", "CLASS"), most=_MAX_WIDTHS
    )


def waiting_table(rows: Sequence[Mapping[str, Any]], now: float) -> FittingTable:
    """Waiting items of ``/api/v1/queue``."""
    cells = [
        (
            row["id"],
            UNKNOWN if row.get("position") is None else row["position"],
            duration(now - row.get("waiting_since", row["submitted_at"])),
            row["kind"],
            row["name"],
            row["owner"] or UNKNOWN,
            row["priority"],
            "HELD" if row["held"] and row["code"] != "HELD" else state_cell(row["state"]),
            row["code"] or UNKNOWN,
            _first_line(row["sentence"]),
        )
        for row in rows
    ]
    return FittingTable(
        _WAITING,
        cells,
        cut=("NAME", "OWNER", "WHY"),
        drop=("PRIORITY", "KIND", "STATE", "OWNER", "NAME"),
        last=("POSITION", "WAITS", "WHY"),
        wanted={"WHY": 36},
        most=_MAX_WIDTHS,
    )


def item_facts(item: Mapping[str, Any], now: float) -> Group:
    """All facts of one item; if it failed, also the full message and the tracebacks."""
    from rich.console import Group

    from ray_multicluster_scheduler.common.tables import pool_facts

    done = (item.get("outcome") or {}).get("completion") or {}
    sentence, failed = str(item.get("sentence") or ""), item["state"] != "SUCCEEDED"
    message = str(done.get("message") or "") if failed else ""
    lines: dict[str, object] = {
        "id": item["id"],
        "kind": item.get("kind"),
        "name": item.get("name"),
        "owner": item.get("owner"),
        **dict(pool_facts(item)),
        "state": state_cell(item["state"]),
        "cluster": item.get("cluster"),
        "attempt": item.get("attempt"),
        "since": ago(item["at"], now) if "at" in item else None,
        "why": f"{item['code']}: {_first_line(sentence)}" if item.get("code") else None,
        "error": _first_line(message) if message != sentence else None,
        "what to do": done.get("next_step") if failed else None,
    }
    rest = [text.partition("\n")[2] for text in ((message,) if message == sentence else (sentence, message))]
    return Group(facts_table(lines), *_unfolded(*rest), *_tracebacks(item))


def _tracebacks(item: Mapping[str, Any]) -> Iterator[Text | str]:
    """Of the item, and of the items it depends on that failed."""
    outcome = item.get("outcome")
    while outcome:
        result, done = outcome.get("result") or {}, outcome["completion"]
        if result.get("traceback"):
            failed_id = result.get("task_id") or done["task_id"]
            of_item = "" if failed_id == item["id"] else f" of {failed_id}"
            yield from _unfolded(f"Attempt {result['attempt']}{of_item} on {done['cluster']}:\n{result['traceback']}")
        outcome = outcome.get("origin")


def _unfolded(*texts: str) -> Iterator[Text | str]:
    """Lines that are neither cut nor folded."""
    from rich.text import Text

    for text in filter(str.strip, texts):
        yield from ("", Text(escaped_lines(text.rstrip()), no_wrap=True, overflow="ignore"))


def _run_time(state: str, began: float | None, ended: float | None, now: float) -> str:
    """Run time of the last attempt, so far if it still runs."""
    until = now if state == "RUNNING" else ended
    return UNKNOWN if began is None or until is None else duration(until - began)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]

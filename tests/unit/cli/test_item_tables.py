"""How long items ran: their runs alone, and of those that run, so far."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ray_multicluster_scheduler.cli.item_tables import items_table, jobs_table

NOW = 10_000.0
WAITED = {"submitted_at": 1_000.0, "attempt": 1, "cluster": "mac"}
ITEM = {**WAITED, "id": "i", "kind": "task", "name": "n", "owner": "ann"}
JOB = {**WAITED, "job_id": "j", "entrypoint": "true"}


def shown(table: Any) -> str:
    """What stands in the column RAN."""
    screen = Console(file=io.StringIO(), width=200)
    screen.print(table)
    title, line = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is the StringIO of above
    at = title.index("RAN")
    return line[at:].split()[0]


@pytest.mark.parametrize(
    ("state", "began", "ended", "ran"),
    [
        ("QUEUED", None, None, "–"),
        ("DISPATCHING", None, None, "–"),
        ("RUNNING", 9_955.0, None, "45s"),
        ("RETRYING", 9_000.0, None, "–"),
        ("SUCCEEDED", 9_000.0, 9_012.0, "12s"),
        ("FAILED", 9_000.0, 9_600.0, "10m"),
        ("CANCELLED", None, 9_600.0, "–"),
    ],
)
def test_what_it_waited_is_no_part_of_it(state: str, began: float | None, ended: float | None, ran: str) -> None:
    times = {"started_at": began, "finished_at": ended}
    assert shown(items_table([{**ITEM, **times, "state": state}], NOW)) == ran
    assert shown(jobs_table([{**JOB, **times, "status": state}], NOW)) == ran

"""How long items ran: their runs alone, and of those that run, so far. And that rows stay short, but not too short."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ray_multicluster_scheduler.cli.commands.clusters import fleet_table
from ray_multicluster_scheduler.cli.commands.fleet import local_table
from ray_multicluster_scheduler.cli.commands.owner import owners_table
from ray_multicluster_scheduler.cli.commands.status import status_overview
from ray_multicluster_scheduler.cli.commands.token import tokens_table
from ray_multicluster_scheduler.cli.layout.item_tables import actors_table, items_table, jobs_table, waiting_table
from ray_multicluster_scheduler.cli.layout.output import PIPE_WIDTH
from ray_multicluster_scheduler.local_fleet.fleet_home import ClusterStatus
from tests.unit.cli.golden_data import STATUS, cluster
from tests.unit.cli.test_golden_clusters import owner, token

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
def test_run_time_excludes_waiting(state: str, began: float | None, ended: float | None, ran: str) -> None:
    times = {"started_at": began, "finished_at": ended}
    assert shown(items_table([{**ITEM, **times, "state": state}], NOW)) == ran
    assert shown(jobs_table([{**JOB, **times, "status": state}], NOW)) == ran


def lines(picture: Any, width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(picture, crop=False)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO of above
    return [line.rstrip() for line in text.splitlines()]


def test_an_endless_name_does_not_spoil_a_table_in_a_pipe() -> None:
    long = "x" * 100_000
    ended = {"state": "SUCCEEDED", "started_at": 1.0, "finished_at": 2.0}
    items = lines(items_table([{**ITEM, **ended, "name": long}], NOW), PIPE_WIDTH)
    assert max(map(len, items)) < 200
    assert f"{'x' * 79}… " in items[1]
    jobs = lines(jobs_table([{**JOB, **ended, "status": "FAILED", "entrypoint": long}], NOW), PIPE_WIDTH)
    assert max(map(len, jobs)) < 200
    row = {**ITEM, "state": "QUEUED", "priority": 0, "held": False, "code": "NO_CAPACITY", "sentence": long}
    assert max(map(len, lines(waiting_table([row], NOW), PIPE_WIDTH))) < 400
    actor = {**ITEM, **ended, "name": long, "class": long, "lifetime": None, "message": ""}
    assert max(map(len, lines(actors_table([actor]), PIPE_WIDTH))) < 300
    assert max(map(len, lines(owners_table([owner("ann", 0, 0, paused=long)]), PIPE_WIDTH))) < 400
    assert max(map(len, lines(tokens_table([token("k3", "ann", "viewer", 0, None, long)], NOW), PIPE_WIDTH))) < 400
    silent = {**STATUS, "clusters": [cluster("lab", "CLUSTER_UNREACHABLE", sentence=long)]}
    assert max(map(len, lines(status_overview(silent, NOW), PIPE_WIDTH))) < 400


def test_tags_and_owners_are_complete_in_a_pipe() -> None:
    """All of it is there: nobody else bounds names and sentences, but these."""
    tags, who = [f"tag-{number:02}" for number in range(40)], "o" * 256
    ended = {"state": "SUCCEEDED", "started_at": 1.0, "finished_at": 2.0, "owner": who}
    waits = {**ITEM, "owner": who, "state": "QUEUED", "priority": 0, "held": False, "code": "HELD", "sentence": ""}
    local = ClusterStatus("linux", "up", "127.0.0.1:10001", "http://127.0.0.1:8265", tags, [])
    for table, words in (
        (fleet_table([cluster("mac", "UP", tags=tags)]), "tag-39"),
        (local_table([local]), "tag-39"),
        (items_table([{**ITEM, **ended}], NOW), who),
        (waiting_table([waits], NOW), who),
        (owners_table([owner(who, 0, 0)]), who),
        (tokens_table([token("k3", who, "viewer", 0, None, "")], NOW), who),
    ):
        assert words in lines(table, PIPE_WIDTH)[1]


def test_long_ids_in_a_narrow_terminal() -> None:
    row = {**ITEM, "id": "task-0123456789-retry-0123456789abcdef012", "state": "SUCCEEDED", "cluster": "kuberay-big"}
    shown_lines = lines(items_table([{**row, "started_at": 1.0, "finished_at": 2.0}], NOW), 60)
    assert max(map(len, shown_lines)) <= 60
    assert row["id"] in shown_lines[1]


def test_held_is_shown_once() -> None:
    row = {**ITEM, "state": "QUEUED", "priority": 0, "held": True, "code": "HELD", "sentence": "is held: until Monday"}
    assert lines(waiting_table([row], NOW), 200)[1].endswith("QUEUED  HELD  is held: until Monday")
    assert " HELD   RETRY  " in lines(waiting_table([{**row, "code": "RETRY"}], NOW), 200)[1]

"""How `rmcs clusters` shows what is known, and what is not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ray_multicluster_scheduler.app.client_api.cluster_rows import ClusterRows
from ray_multicluster_scheduler.cli.commands.clusters import fleet_table
from ray_multicluster_scheduler.cli.layout.cluster_tables import load

GIB = 1024**3
UP = {
    "name": "linux", "state": "UP", "sentence": None, "carrier": "agent", "tags": ["linux", "x86_64"], "nodes": 2,
    "total": {"CPU": 16.0, "memory": 32.0 * GIB, "GPU": 1.0}, "free": {"CPU": 12.5, "memory": 30.0 * GIB},
    "ray_version": "2.60.0", "python_version": "3.11.7",
}  # fmt: skip
DOWN: dict[str, Any] = dict.fromkeys(UP) | {"name": "mac", "state": "DOWN", "sentence": "nobody answers", "tags": []}

LOST = {"state": "CLUSTER_LOST", "current": False, "snapshot_at": 1000.0}


@pytest.mark.parametrize(
    ("row", "resource", "unit", "shown"),
    [
        (UP, "CPU", 1, "3.5/16"),
        (UP, "memory", GIB, "2/32"),
        (UP, "GPU", 1, "1/1"),
        (UP | {"free": None}, "CPU", 1, "?/16"),
        (UP | {"total": {"CPU": 2.0}}, "GPU", 1, "0/0"),
        (UP | {"total": {"CPU": 2.0}, "free": None}, "GPU", 1, "0/0"),
        (DOWN, "CPU", 1, "–"),
        (UP | LOST, "CPU", 1, "–"),
        (UP | LOST | {"state": "STALE_SNAPSHOT"}, "CPU", 1, "3.5/16"),
    ],
)
def test_load_is_used_of_total_and_never_a_guess(row: dict[str, Any], resource: str, unit: float, shown: str) -> None:
    assert load(row, resource, unit) == shown


def test_the_table_has_a_line_per_cluster_without_control_characters() -> None:
    screen = Console(file=io.StringIO(), width=200, force_terminal=False)
    screen.print(fleet_table([UP, DOWN | {"tags": ["[red]x"]}]))
    text = screen.file.getvalue()  # it is the StringIO of above
    linux, mac = [line.split() for line in text.splitlines() if line.startswith(("linux", "mac"))]
    assert linux == ["linux", "UP", "agent", "2", "3.5/16", "2/32", "1/1", "linux,x86_64", "2.60.0", "3.11.7"]
    assert mac == ["mac", "DOWN", "–", "–", "–", "–", "–", "[red]x", "–", "–"]
    assert "\x1b" not in text


def test_old_load_of_an_unreachable_cluster_is_not_shown_as_current() -> None:
    screen = Console(file=io.StringIO(), width=200, force_terminal=False)
    screen.print(fleet_table([UP | LOST]))
    (linux,) = [line.split() for line in screen.file.getvalue().splitlines() if line.startswith("linux")]
    assert linux[:7] == ["linux", "CLUSTER_LOST", "agent", "–", "–", "–", "–"]
    (row,) = ClusterRows([UP | LOST])
    assert "12.5 of 16 CPU" in ClusterRows([UP])._repr_html_()
    assert "of 16 CPU" not in ClusterRows([row])._repr_html_()

"""The table of clusters, their load and what is wrong with them, of `rmcs status` and `rmcs top`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api.cluster_rows import why_words
from ray_multicluster_scheduler.cli.layout.cluster_load import GIB, load, nodes
from ray_multicluster_scheduler.cli.layout.output import cluster_state_cell
from ray_multicluster_scheduler.cli.layout.table import FittingTable

_TITLES = ("CLUSTER", "STATE", "NODES", "CPU", "MEMORY GiB", "GPU", "ITEMS", "WHY")


def load_table(rows: Iterable[Mapping[str, Any]], **fitting: Any) -> FittingTable:
    """One row for each cluster; ``fitting`` says how it fits where there is little room."""
    return FittingTable(_TITLES, [_cells(row) for row in rows], cut=("WHY",), **fitting)


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["name"],
        cluster_state_cell(row),
        nodes(row),
        load(row, "CPU"),
        load(row, "memory", GIB),
        load(row, "GPU"),
        row["items"],
        why_words(row).partition("\n")[0],
    )

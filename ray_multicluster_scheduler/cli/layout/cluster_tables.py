"""Clusters in tables: their state, their load, and the table that `rmcs status` and `rmcs top` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api.cluster_rows import is_of_now, reason_text
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.layout.times import UNKNOWN, ago

if TYPE_CHECKING:
    from rich.text import Text

GIB = 1024**3
_TITLES = ("CLUSTER", "STATE", "NODES", "CPU", "MEMORY GiB", "GPU", "ITEMS", "WHY")


def load_table(rows: Iterable[Mapping[str, Any]], **fitting: Any) -> FittingTable:
    """One row for each cluster; ``fitting`` are options of FittingTable."""
    cells = [
        (
            row["name"],
            cluster_state_cell(row),
            nodes(row),
            load(row, "CPU"),
            load(row, "memory", GIB),
            load(row, "GPU"),
            row["items"],
            reason_text(row).partition("\n")[0],
        )
        for row in rows
    ]
    return FittingTable(_TITLES, cells, cut=("WHY",), **fitting)


def cluster_state(row: Mapping[str, Any]) -> str:
    """The state, and whether it is cordoned or paused."""
    words = [str(row["state"]), *(["cordoned"] if row.get("cordoned") else [])]
    return ", ".join([*words, *(["paused"] if row.get("paused") is not None else [])])


def cluster_state_cell(row: Mapping[str, Any]) -> Text:
    """The same, coloured."""
    from rich.text import Text

    text = cluster_state(row)
    return Text(text, style="red" if row["state"] != "UP" else "green" if text == "UP" else "yellow")


def nodes(row: Mapping[str, Any]) -> str:
    """The number of nodes; unknown for a cluster that does not answer."""
    known = row.get("nodes")
    return str(known) if known is not None and is_of_now(row) else UNKNOWN


def load(row: Mapping[str, Any], name: str, unit: float = 1.0) -> str:
    """``used/total``; unknown for a cluster that does not answer, since old numbers would be taken for current ones."""
    return _load(row, name, unit) if is_of_now(row) else UNKNOWN


def load_with_age(row: Mapping[str, Any], name: str, unit: float, now: float) -> str:
    """The same; of a cluster that does not answer, the last known numbers and their age."""
    if is_of_now(row) or row.get("total") is None:
        return _load(row, name, unit)
    return f"{_load(row, name, unit)} as of {ago(row['snapshot_at'], now)}"


def _load(row: Mapping[str, Any], name: str, unit: float) -> str:
    """The used part is unknown where the source does not report what is free."""
    total, free = row.get("total"), row.get("free")
    if total is None:
        return UNKNOWN
    has = total.get(name, 0.0) / unit
    if free is None and has:
        return f"?/{has:.3g}"
    used = max(0.0, has - (free or {}).get(name, 0.0) / unit)
    return f"{used:.3g}/{has:.3g}"

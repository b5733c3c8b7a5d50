"""How much of a cluster is used, in a cell of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api.cluster_rows import is_of_now
from ray_multicluster_scheduler.cli.layout.times import UNKNOWN, ago

GIB = 1024**3


def nodes(row: Mapping[str, Any]) -> str:
    """How many there are; of a cluster that is silent nobody knows."""
    known = row.get("nodes")
    return str(known) if known is not None and is_of_now(row) else UNKNOWN


def load(row: Mapping[str, Any], name: str, unit: float = 1.0) -> str:
    """``used/total``; unknown for a cluster that is silent, so that nobody takes it for what is there now."""
    return _load(row, name, unit) if is_of_now(row) else UNKNOWN


def load_with_its_age(row: Mapping[str, Any], name: str, unit: float, now: float) -> str:
    """Where there is room for it, also of one that is silent: as it was last seen."""
    if is_of_now(row) or row.get("total") is None:
        return _load(row, name, unit)
    return f"{_load(row, name, unit)} as of {ago(row['snapshot_at'], now)}"


def _load(row: Mapping[str, Any], name: str, unit: float) -> str:
    """The used part is unknown where the source cannot tell what is free."""
    total, free = row.get("total"), row.get("free")
    if total is None:
        return UNKNOWN
    has = total.get(name, 0.0) / unit
    if free is None and has:
        return f"?/{has:.3g}"
    used = max(0.0, has - (free or {}).get(name, 0.0) / unit)
    return f"{used:.3g}/{has:.3g}"

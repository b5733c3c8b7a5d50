"""How much of a cluster is used, in a cell of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.cli.times import UNKNOWN

GIB = 1024**3


def load(row: Mapping[str, Any], name: str, unit: float = 1.0) -> str:
    """``used/total``; the used part is unknown where the source cannot tell what is free."""
    total, free = row.get("total"), row.get("free")
    if total is None:
        return UNKNOWN
    has = total.get(name, 0.0) / unit
    if free is None:
        return f"?/{has:.3g}"
    return f"{max(0.0, has - free.get(name, 0.0) / unit):.3g}/{has:.3g}"

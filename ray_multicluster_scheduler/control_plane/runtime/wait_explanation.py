"""What `explain` says of an item that waits: its place, when it may start, and what would let it go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.scheduler.lifecycle.placement.forecast import Forecast
from ray_multicluster_scheduler.scheduler.lifecycle.prerequisites import Missing


def waiting_story(
    missing: Missing | None,
    place: tuple[int, Sequence[tuple[str, str]]] | None,
    decision: SchedulingDecision | None,
    forecast: Forecast | None,
    *,
    held: bool = False,
) -> dict[str, Any]:
    """``missing``: what it waits for before it is queued; ``place``: its position in the queue (1: the next), and the
    first few ahead of it with the reason; ``decision``: why no cluster takes it now; ``forecast``: None if it does not
    wait; ``held``: somebody keeps it from starting. For one that does not wait, all is None or empty."""
    helps = [] if missing is None else [missing.unblocked_by]
    helps += ["somebody releases it"] if held and forecast is not None else []
    if not helps and decision is not None and decision.unblocked_by and forecast is not None:
        helps = [decision.unblocked_by]
    return {
        "unblocked_by": " and ".join(helps) or None,
        "waits_for": list(missing.after) if missing is not None else [],
        "queue": None if place is None else _queue(*place),
        "estimate": None if forecast is None else forecast.to_dict(),
    }


def _queue(position: int, ahead: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"position": position, "ahead": [{"id": task_id, "why": why} for task_id, why in ahead]}

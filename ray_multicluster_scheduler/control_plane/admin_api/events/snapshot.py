"""How everything is at one moment, for whoever then follows what changes."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime

MOST_ITEMS = 1_000


def snapshot(runtime: ServiceRuntime, only_owner: str | None = None) -> dict[str, Any]:
    """On the loop. What happened up to ``number`` is in it, and some of what comes next may be: of an item the state
    with the highest ``step`` holds."""
    live = [one for one in runtime.unfinished() if only_owner is None or one.task.owner == only_owner]
    return {
        "number": runtime.event_publisher.hub.number,
        "type": "snapshot",
        "at": runtime.clock.now(),
        "clusters": explanation.cluster_rows(runtime),
        "counts": dict(Counter(str(one.state) for one in live)),
        "items": [_row(one) for one in islice(reversed(live), MOST_ITEMS)],
        "all_items": len(live) <= MOST_ITEMS,
    }


def _row(item: Item) -> dict[str, Any]:
    task, step = item.task, item.transition
    return {
        "id": item.id,
        "kind": task.kind,
        "name": task.name,
        "owner": task.owner,
        "state": str(item.state),
        "step": 0 if step is None else step.number,
        "attempt": item.attempt,
        "cluster": item.cluster,
        "code": None if step is None else step.code,
        "sentence": None if step is None else step.sentence,
    }

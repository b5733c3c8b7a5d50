"""FleetWatch: notes when a cluster is not what it was, and tells its load as it is seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.control_plane.store.records import OperationRecord
from ray_multicluster_scheduler.scheduler.lifecycle import events as brain
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import CLUSTER, TELEMETRY, Event

MOST_NAMED = 3
LOOK_AGAIN_S = 5.0
"""Some of what becomes of a cluster comes only with time, and nobody says so."""
_SAID = (
    brain.SnapshotTaken,
    brain.SnapshotFailed,
    brain.DashboardChecked,
    brain.HeadSilent,
    brain.LinkUp,
    brain.LinkDown,
    brain.LinkClosed,
    brain.LinkFailed,
    brain.ClusterChanged,
    brain.CordonChanged,
    brain.ClusterDeclaredDead,
    brain.ClusterChecked,
    brain.QueuePaused,
    brain.QueueResumed,
)

Face = Mapping[str, Any]
"""What is told of a cluster; of these ``sentence`` alone is no news."""


class FleetWatch:
    """On one loop. ``faces`` says what the clusters are now; ``note`` writes something down."""

    def __init__(
        self, faces: Callable[[], Mapping[str, Face]], note: Callable[[OperationRecord], object], clock: Clock
    ) -> None:
        self._faces, self._note, self._clock = faces, note, clock
        self._known: dict[str, Face] = {}
        self.begin()

    def begin(self) -> None:
        """What the clusters are now is no news."""
        self._known = dict(self._faces())

    def look(self) -> None:
        """Compare, and note what is different."""
        now = dict(self._faces())
        for name in [*now, *(set(self._known) - set(now))]:
            face = now.get(name, {"state": "REMOVED", "sentence": "is not configured any more"})
            if _news(face) != _news(self._known.get(name, {})):
                document = json.dumps({"before": self._known.get(name, {}).get("state"), **face}).encode()
                self._note(OperationRecord(CLUSTER, name, self._clock.now(), None, document))
        self._known = now

    @staticmethod
    def may_change(event: object) -> bool:
        """Is it one after which a cluster may be something else?"""
        return isinstance(event, _SAID)


def shared_with(others: Sequence[str]) -> str:
    """What is to be known of a cluster that other control planes use as well; empty if none does."""
    if not others:
        return ""
    named = ", ".join(others[:MOST_NAMED]) + (f" and {len(others) - MOST_NAMED} more" if others[MOST_NAMED:] else "")
    return f"agents of other control planes were there when ours was started ({named}); each keeps its own limits only"


def load_of(snapshot: ResourceSnapshot, items: int) -> Event:
    """What is free in a cluster, as telemetry."""
    said = {
        "at": snapshot.taken_at,
        "cluster": snapshot.cluster,
        "nodes": len(snapshot.nodes),
        "total": snapshot.total(),
        "free": snapshot.free(),
        "items": items,
    }
    return Event(TELEMETRY, said)


def _news(face: Face) -> Iterable[Any]:
    return sorted((key, value) for key, value in face.items() if key != "sentence")

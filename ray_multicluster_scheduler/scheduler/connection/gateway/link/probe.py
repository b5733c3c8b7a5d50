"""What the cluster has and what is free, seen by a native driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray._private.state import available_resources_per_node

from ray_multicluster_scheduler.scheduler.connection.gateway.link.observed import Observer

BUSY_INTERVAL_S = 0.2
QUIET_INTERVAL_S = 1.0
OBSERVED_INTERVAL_S = 5.0
LATE_S = 1.0
"""After an answer that took longer than this everybody is told what it was, changed or not: somebody may have been told
that there is none."""
_HEAD_MARK = "node:__internal_head__"


def look() -> dict[str, Any]:
    """The SNAPSHOT message's head, without what is observed."""
    free = available_resources_per_node()
    nodes = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        node_id = node["NodeID"]
        total = _visible(node["Resources"])
        left = _visible(free[node_id]) if node_id in free else None
        # Ray leaves out what is used up entirely; a name that is missing here is zero, not unknown.
        known = None if left is None else {name: left.get(name, 0.0) for name in total}
        nodes.append({"node_id": node_id, "total": total, "free": known, "is_head": _HEAD_MARK in node["Resources"]})
    return {"nodes": sorted(nodes, key=lambda node: str(node["node_id"]))}


def object_store_bytes() -> float:
    """Of the node that this process runs on: what it puts goes there."""
    here = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == here:
            return float(node["Resources"].get("object_store_memory", 0.0))
    return 0.0


def _visible(resources: dict[str, float]) -> dict[str, float]:
    """Without Ray's own markers and the object store, which no item asks for."""
    return {
        name: amount
        for name, amount in resources.items()
        if not name.startswith("node:") and name != "object_store_memory" and "_group_" not in name
    }


class Probe:
    """Looks again and again on its own thread, and tells when something changed.

    How busy the machine is always changes a little, so that alone is told every few seconds only. It is seen from
    here, so it speaks for the cluster only where this is the cluster's one node.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], busy: Callable[[], bool]) -> None:
        self._tell = tell
        self._busy = busy
        self._now = threading.Event()
        self._last: dict[str, Any] | None = None
        self._observer = Observer()
        self._observed: dict[str, float] | None = None
        self._next_observed = 0.0
        self._unanswered_since: float | None = None
        threading.Thread(target=self._loop, name="rmcs-probe", daemon=True).start()

    def now(self) -> None:
        """Look at once, and tell whether it changed or not."""
        self._last = None
        self._now.set()

    def silent_s(self) -> float:
        """For how long the head has owed an answer; 0 if it owes none."""
        since = self._unanswered_since
        return 0.0 if since is None else time.monotonic() - since

    def _loop(self) -> None:
        while True:
            self._now.clear()
            if self._unanswered_since is None:
                self._unanswered_since = time.monotonic()
            try:
                seen = look()
                observed_anew = self._observe(len(seen["nodes"]))
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds when its head is in trouble; look again
                print(f"rmcs agent: the cluster's resources cannot be read: {error}", flush=True)
            else:
                late, self._unanswered_since = self.silent_s() > LATE_S, None
                if late or observed_anew or seen != self._last:
                    self._last = seen
                    self._tell({**seen, "observed": self._observed})
            self._now.wait(BUSY_INTERVAL_S if self._busy() else QUIET_INTERVAL_S)

    def _observe(self, nodes: int) -> bool:
        """True when there is news of how busy the machine is."""
        now = time.monotonic()
        if now < self._next_observed:
            return False
        self._next_observed = now + OBSERVED_INTERVAL_S
        before, self._observed = self._observed, self._observer.look() if nodes == 1 else None
        return before != self._observed

"""LoadSeries: queue lengths and cluster use of the last 24 hours by minute, kept in the store."""

from __future__ import annotations

import asyncio
import json
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.exception import StoreError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import Change, Store
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy import reasons

_log = get_logger(__name__)
EVERY_S = 60
KEPT_HOURS = 24
_POINTS_PER_HOUR = 3600 // EVERY_S
_KEY = "series/"
_OF_CLUSTER = ("items", "ahead", "up", "cpu", "gpu", "memory")
_SHARES = ("CPU", "GPU", "memory")


class Point(NamedTuple):
    """The load from this minute until the next point. ``begins``: the first point of a process; the load between the
    previous point and this one is unknown."""

    minute: int
    queues: Mapping[str, int]
    running: int
    clusters: Mapping[str, Sequence[float | None]]
    begins: bool = False

    @property
    def values(self) -> tuple[object, ...]:
        return self.queues, self.running, self.clusters


class LoadSeries:
    """Used on the loop. Adds a point when the load has changed, at most once a minute, and writes the points of that
    hour as one small document. No cluster is contacted."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._points: list[Point] = []
        self._hours: set[int] = set()
        self._writing: Future[int] | None = None
        self._begun = False

    def begin(self) -> None:
        """Load the points of earlier processes and start sampling."""
        try:
            self._points = read(self._runtime.store)
        except StoreError as error:
            _log.warning("the load of the last hours cannot be read: %s", error)
        self._hours = {_hour(point.minute) for point in self._points}
        self._tick()

    def _tick(self) -> None:
        if self._runtime.closed:
            return
        now = self._runtime.clock.now()
        # First, so that an error does not stop the series.
        asyncio.get_running_loop().call_later(EVERY_S - now % EVERY_S, self._tick)
        self.sample(now)

    def sample(self, now: float) -> None:
        """Add a point if the load has changed."""
        begins, self._begun = not self._begun, True
        point = self._point(now, begins=begins)
        last = self._points[-1] if self._points else None
        if last is not None and not begins and last.values == point.values:
            return
        if last is not None and last.minute >= point.minute:
            self._points.pop()
            point = point._replace(begins=begins or last.begins)
        self._points.append(point)
        self._drop_old(point.minute)
        self._write(_hour(point.minute))

    def columns(self, hours: float) -> tuple[list[Point], int, int]:
        """Arguments for :func:`table`, which may run in a thread: the points, and the first and last minute."""
        last = int(self._runtime.clock.now()) // EVERY_S
        return list(self._points), last - round(min(hours, KEPT_HOURS) * _POINTS_PER_HOUR) + 1, last

    def _point(self, now: float, *, begins: bool) -> Point:
        machine = self._runtime.machine
        clusters: dict[str, list[float | None]] = {}
        for name in machine.registry.names():
            view = machine.view(name, now)
            shares = [share_taken(view, what) for what in _SHARES]
            up = is_up(view)
            clusters[name] = [view.in_flight, view.prefetched, None if up is None else int(up), *shares]
        running = sum(int(one[0] or 0) for one in clusters.values())
        return Point(int(now) // EVERY_S, waiting_by_queue(machine), running, clusters, begins)

    def _drop_old(self, minute: int) -> None:
        first = minute - KEPT_HOURS * _POINTS_PER_HOUR
        at = bisect_right(self._points, first, key=lambda point: point.minute) - 1
        del self._points[: max(0, at)]  # keeps the point that applies at the start

    def _write(self, hour: int) -> None:
        """Write this hour and delete old ones; skipped during a previous write, since a later point writes the hour."""
        if self._writing is not None and not self._writing.done():
            return
        self._hours.add(hour)
        old = {one for one in self._hours if one < hour - KEPT_HOURS}
        self._hours -= old
        rows = [list(point) for point in self._points if _hour(point.minute) == hour]
        document = zlib.compress(json.dumps(rows, separators=(",", ":")).encode())
        settings: dict[str, bytes | None] = {f"{_KEY}{one}": None for one in old}
        try:
            self._writing = self._runtime.store.write(Change(settings={**settings, f"{_KEY}{hour}": document}))
        except StoreError as error:
            _log.warning("the load cannot be written: %s", error)


def read(store: Store) -> list[Point]:
    """The stored points, oldest first. Raises StoreError."""
    points: list[Point] = []
    for key, document in store.settings(_KEY).items():
        try:
            points += [Point(*row) for row in json.loads(zlib.decompress(document))]
        except (ValueError, TypeError, zlib.error):
            _log.warning("%s cannot be read and is skipped", key)
    return sorted(points, key=lambda point: point.minute)


def table(points: Sequence[Point], first: int, last: int) -> dict[str, Any]:
    """One column per value, one row per minute; null where the load is unknown."""
    rows = _filled(points, first, last)
    queues = sorted({name for row in rows if row for name in row.queues})
    clusters = sorted({name for row in rows if row for name in row.clusters})
    return {
        "every_s": EVERY_S,
        "at": [minute * EVERY_S for minute in range(first, last + 1)],
        "queues": {name: [row.queues.get(name, 0) if row else None for row in rows] for name in queues},
        "running": [row.running if row else None for row in rows],
        "clusters": {
            name: {
                what: [row.clusters[name][at] if row and name in row.clusters else None for row in rows]
                for at, what in enumerate(_OF_CLUSTER)
            }
            for name in clusters
        },
    }


def _filled(points: Sequence[Point], first: int, last: int) -> list[Point | None]:
    rows: list[Point | None] = []
    at = bisect_right(points, first, key=lambda point: point.minute) - 1
    for minute in range(first, last + 1):
        while at + 1 < len(points) and points[at + 1].minute <= minute:
            at += 1
        ended = at + 1 < len(points) and points[at + 1].begins and points[at].minute < minute if at >= 0 else True
        rows.append(None if ended else points[at])
    return rows


def _hour(minute: int) -> int:
    return minute // _POINTS_PER_HOUR


def waiting_by_queue(machine: SchedulerMachine) -> dict[str, int]:
    """Number of waiting items in the task queue and in the job queue."""
    depths = {"task": 0, "job": 0}
    for lane, waiting in machine.queue_depths().items():
        depths[lane.queue] = depths.get(lane.queue, 0) + waiting
    return depths


def is_up(view: ClusterView) -> bool | None:
    """Does the cluster accept work, as of its last check? None before its first snapshot."""
    problem = view.problem
    if problem is None:
        return True
    return None if problem.code == reasons.CLUSTER_UNKNOWN else problem.being_asked


def share_taken(view: ClusterView, resource: str) -> float | None:
    """Used share of a resource, to two decimals; None if the cluster has none of it, or does not answer."""
    if not is_up(view):
        return None
    nodes = (view.without_reservation or view).nodes
    total = sum(node.total.get(resource, 0.0) for node in nodes)
    if total <= 0 or any(node.free is None for node in nodes):
        return None
    return round(1 - sum((node.free or {}).get(resource, 0.0) for node in nodes) / total, 2)

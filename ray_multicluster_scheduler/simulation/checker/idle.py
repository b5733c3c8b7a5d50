"""idle_fleet_starts_at_once."""

from __future__ import annotations

from ray_multicluster_scheduler.simulation.checker.history_index import Entry
from ray_multicluster_scheduler.simulation.checker.history_state import Book
from ray_multicluster_scheduler.simulation.checker.item_history import WINDOW_S, Cluster, Item
from ray_multicluster_scheduler.simulation.checker.property import BookJudge

_ROUNDING = 1e-3


class IdleFleetStartsAtOnce(BookJudge):
    """Judged where all clusters are known to be well, and one of them has held nothing of anybody's for a while."""

    name = "idle_fleet_starts_at_once"
    sentence = "An item that fits a healthy, idle cluster of a healthy fleet is sent in the very pass that sees it."

    def __init__(self) -> None:
        super().__init__()
        self._accused: set[str] = set()

    def settled(self, entry: Entry, book: Book) -> None:
        if not book.waiting or any(one.newest is None for one in book.clusters.values()):
            return
        idle = [one for one in book.clusters.values() if not one.live and is_idle(one, entry.at)]
        if not idle or not all(is_healthy(one, entry.at, book) for one in book.clusters.values()):
            return
        if book.room_may_be_kept(entry.at):
            return
        for item in book.waiting.values():
            cluster = next((one for one in idle if fits_idle(one, item, entry.at, book)), None)
            if cluster is not None and book.may_start(item) and item.task.id not in self._accused:
                self._accused.add(item.task.id)
                self.accuse(entry, f"{item.task.id} waits ({item.code}), and {cluster.name} is healthy and idle")


def is_healthy(cluster: Cluster, at: float, book: Book) -> bool:
    """By everything that was heard of it."""
    settings = book.settings
    fresh = cluster.pushed() or at - cluster.heard_at <= 3 * settings.snapshot_interval_s - _ROUNDING
    linked = at - cluster.link_failed_at > settings.breaker_recovery_s
    quiet = not cluster.may_be_open and not cluster.failed_asking and cluster.dashboard_ok and cluster.head_ok
    quiet = quiet and cluster.dead_since is None
    return fresh and linked and quiet and cluster.link != "down" and not cluster.cordoned and not cluster.paused


def is_idle(cluster: Cluster, at: float) -> bool:
    """Nothing of ours was there for a while, and no snapshot showed anything in use."""
    used = (amount for node in cluster.most_used(at).values() for amount in node.values())
    return not cluster.live and at - cluster.left_at > WINDOW_S and all(amount < _ROUNDING for amount in used)


def fits_idle(cluster: Cluster, item: Item, at: float, book: Book) -> bool:
    """Could it go there, if nothing is there?"""
    if item.task.gang is not None or not cluster.takes_kind(item):
        return False
    if book.settings.submission_interval_s > 0 and at - cluster.last_submission < book.settings.submission_interval_s:
        return False
    need = item.task.placement
    totals = cluster.totals().values()
    return any(all(amount <= total.get(name, 0.0) for name, amount in need.items()) for total in totals)

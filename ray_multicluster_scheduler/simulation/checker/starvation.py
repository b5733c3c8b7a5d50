"""no_starvation: wide items and gangs included."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist
from ray_multicluster_scheduler.simulation.checker.book import Book
from ray_multicluster_scheduler.simulation.checker.known import Cluster, Item
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, is_placed
from ray_multicluster_scheduler.simulation.checker.story import Entry
from ray_multicluster_scheduler.simulation.history import Began, Over

_SLACK_S = 10.0


class NoStarvation(BookJudge):
    """Judged while nothing goes wrong. Who waits for room alone has to wait ``reserve_after_s``, and then for what runs
    to end, once for itself and once for each that is before it; twice that is given. After that, nobody who came later
    and is no more urgent may be sent to a cluster that could take it."""

    name = "no_starvation"
    sentence = "However wide it is, an item is not overtaken for ever by smaller ones that came later."

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[tuple[str, int], float] = {}
        self._longest = 0.0
        self._accused: set[str] = set()

    def see(self, entry: Entry, book: Book) -> None:
        what = entry.what
        if type(what) is Began:
            self._began[what.task_id, what.attempt] = entry.at
        elif type(what) is Over:
            self._longest = max(self._longest, entry.at - self._began.pop((what.task_id, what.attempt), entry.at))
        elif type(what) is Persist and is_placed(what, book) and len(book.waiting) > 1:
            cluster = book.clusters.get(what.transition.cluster or "")
            if cluster is not None:
                self._look(entry, book.items[what.transition.task_id], cluster, book)

    def _look(self, entry: Entry, item: Item, cluster: Cluster, book: Book) -> None:
        patience = book.settings.reserve_after_s
        running = max((entry.at - began for began in self._began.values()), default=0.0)
        for one in book.waiting.values():
            waited = entry.at - max(one.queued_at, book.calm_since)
            if waited <= patience + _SLACK_S or one.task.id in self._accused or not _overtakes(item, one):
                continue
            before = sum(other.number < one.number for other in book.waiting.values())
            longest = max(self._longest, running)
            if waited <= patience + 2 * (1 + before) * longest + _SLACK_S:
                continue
            if one.code == "NO_CAPACITY" and book.may_start(one) and _could_take(cluster, one):
                self._accused.add(one.task.id)
                self.accuse(
                    entry,
                    f"{one.task.id} has waited {waited:g} s for room, nothing runs for longer than {longest:g} s, "
                    f"and {item.task.id}, which came later, goes to {cluster.name}",
                )


def _overtakes(item: Item, one: Item) -> bool:
    return one.number < item.number and one.priority >= item.priority and one is not item


def _could_take(cluster: Cluster, item: Item) -> bool:
    """Were it empty."""
    totals = list(cluster.totals().values())
    need = item.task.placement
    if not cluster.takes_kind(item) or cluster.cordoned or cluster.paused:
        return False
    if item.task.gang is None:
        return any(all(amount <= total.get(name, 0.0) for name, amount in need.items()) for total in totals)
    members = item.task.gang.members
    return len(totals) == 1 and all(
        sum(one.requirements.get(name, 0.0) for one in members) <= totals[0].get(name, 0.0) for name in need
    )

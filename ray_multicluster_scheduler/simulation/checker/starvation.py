"""no_starvation: wide items and gangs included."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist
from ray_multicluster_scheduler.simulation.checker.history_index import Entry
from ray_multicluster_scheduler.simulation.checker.history_state import Book
from ray_multicluster_scheduler.simulation.checker.item_history import Cluster, Item
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, is_placed
from ray_multicluster_scheduler.simulation.history import Began, Over

_SLACK_S = 5.0


class NoStarvation(BookJudge):
    """Judged while nothing goes wrong, of whoever waits for room and has nobody before it who is as urgent. It may have
    to wait ``reserve_after_s``, and then until what runs is over; twice that is given. After that, nobody who came
    later and is no more urgent may be sent to a cluster that could take it.

    Some go before it by right, and its time begins anew: who is more urgent, for room is not kept from them; and with
    fair shares another owner's item that is no smaller, for between such it is the shares that decide."""

    name = "no_starvation"
    sentence = "However wide it is, an item is not overtaken for ever by smaller ones that came later."

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[tuple[str, int], float] = {}
        self._ended: list[tuple[float, float]] = []
        self._first_since: dict[str, float] = {}
        self._accused: set[str] = set()

    def see(self, entry: Entry, book: Book) -> None:
        what = entry.what
        if type(what) is Began:
            self._began[what.task_id, what.attempt] = entry.at
        elif type(what) is Over:
            began = self._began.pop((what.task_id, what.attempt), entry.at)
            self._ended.append((entry.at, entry.at - began))
        elif type(what) is Persist and is_placed(what, book) and len(book.waiting) > 1:
            cluster = book.clusters.get(what.transition.cluster or "")
            if cluster is not None:
                self._look(entry, book.items[what.transition.task_id], cluster, book)

    def _look(self, entry: Entry, item: Item, cluster: Cluster, book: Book) -> None:
        first = _first_in_line(book)
        self._first_since = {one.task.id: self._first_since.get(one.task.id, entry.at) for one in first}
        for one in first:
            if _goes_by_right(item, one, book) and _could_take(cluster, one):
                self._first_since[one.task.id] = entry.at
            since = max(self._first_since[one.task.id], one.queued_at, one.code_since, book.calm_since)
            waited = entry.at - since
            if waited <= book.settings.reserve_after_s + _SLACK_S or not _overtakes(item, one):
                continue
            longest = self._longest(entry.at, since)
            if waited <= book.settings.reserve_after_s + 2 * longest + _SLACK_S or one.task.id in self._accused:
                continue
            if one.code == "NO_CAPACITY" and book.may_start(one) and _could_take(cluster, one):
                self._accused.add(one.task.id)
                self.accuse(
                    entry,
                    f"{one.task.id} has been the first to wait for room for {waited:g} s, nothing runs for longer than "
                    f"{longest:g} s, and {item.task.id}, which came later, goes to {cluster.name}",
                )

    def _longest(self, at: float, since: float) -> float:
        """How long anything ran that ended since then, or runs."""
        running = [at - began for began in self._began.values()]
        return max([0.0, *running, *(took for ended, took in self._ended if ended >= since)])


def _first_in_line(book: Book) -> list[Item]:
    """Those who have nobody before them who is as urgent; the more urgent ones first."""
    first: list[Item] = []
    highest: float | None = None
    for one in sorted(book.waiting.values(), key=lambda one: one.number):
        if highest is None or one.priority > highest:
            first.append(one)
            highest = one.priority
    return first


def _overtakes(item: Item, one: Item) -> bool:
    return one.number < item.number and one.priority >= item.priority and one is not item


def _goes_by_right(item: Item, one: Item, book: Book) -> bool:
    ageing_s = book.settings.ageing_s
    if _urgency(item, ageing_s) < _urgency(one, ageing_s):
        return True
    if book.settings.order != "fair" or item.task.owner == one.task.owner:
        return False
    return all(item.task.placement.get(name, 0.0) >= amount for name, amount in one.task.placement.items())


def _urgency(item: Item, ageing_s: float) -> float:
    """Smaller is more urgent."""
    return item.task.submitted_at - item.priority * ageing_s


def _could_take(cluster: Cluster, item: Item) -> bool:
    """Were it empty."""
    totals = list(cluster.totals().values())
    need = item.task.placement
    if not cluster.takes_kind(item) or cluster.cordoned or cluster.paused:
        return False
    return any(all(amount <= total.get(name, 0.0) for name, amount in need.items()) for total in totals)

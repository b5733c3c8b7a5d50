"""Properties checked on each state dump: the reason of every waiting item, and which circuit breakers are open."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ray_multicluster_scheduler.simulation.checker.history_state import Book, Cluster, Item
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, Entry
from ray_multicluster_scheduler.simulation.history import StateDump

_ROUNDING = 1e-3


class EveryWaitingTaskHasATrueReason(BookJudge):
    """Whenever the machine was asked. A reason that speaks of a cluster must be true of one that the item may go to."""

    name = "every_waiting_task_has_a_true_reason"
    sentence = "Whoever waits is told why, and what it is told is so at that moment."

    def see(self, entry: Entry, book: Book) -> None:
        if type(entry.what) is not StateDump:
            return
        told = entry.what.waiting
        for task_id in book.waiting:
            if task_id not in told:
                self.accuse(entry, f"{task_id} waits, and nobody says why")
        for task_id, (code, sentence) in told.items():
            item = book.items.get(task_id)
            if item is None or not sentence or not _is_true(code, item, book, entry.at):
                self.accuse(entry, f"{task_id} is said to wait for {code} ({sentence}), which is not so")


class _Look(NamedTuple):
    """An item that waits, and a cluster that it may go to."""

    item: Item
    one: Cluster
    book: Book
    at: float


def _is_true(code: str, item: Item, book: Book, at: float) -> bool:
    if code in _OF_ITEMS:
        return _OF_ITEMS[code](item, book, at)
    of_cluster = _OF_CLUSTERS.get(code)
    candidates = [one for one in book.clusters.values() if one.takes_kind(item)]
    return of_cluster is not None and any(of_cluster(_Look(item, one, book, at)) for one in candidates)


def _is_held(item: Item, _book: Book, _at: float) -> bool:
    return item.held


def _is_paused(item: Item, book: Book, _at: float) -> bool:
    return item.task.owner in book.paused_owners


def _is_limited(item: Item, book: Book, _at: float) -> bool:
    return item.task.owner not in book.paused_owners and not book.may_start(item)


def _lacks_arguments(item: Item, _book: Book, _at: float) -> bool:
    return item.waits_for


def _waits_for_others(item: Item, book: Book, _at: float) -> bool:
    others = [book.items.get(other) for other in item.task.after]
    return any(one is not None and (one.state is None or not one.state.terminal) for one in others)


def _starts_later(item: Item, _book: Book, at: float) -> bool:
    return item.task.start_after is not None and item.task.start_after > at


def _has_no_clusters(_item: Item, book: Book, _at: float) -> bool:
    return not book.clusters


def _better_is_asked(_item: Item, book: Book, at: float) -> bool:
    return any(not _is_fresh(one, book, at) for one in book.clusters.values())


_OF_ITEMS: dict[str, Callable[[Item, Book, float], bool]] = {
    "HELD": _is_held,
    "OWNER_PAUSED": _is_paused,
    "OWNER_LIMIT": _is_limited,
    "WAITS_FOR_ARGUMENTS": _lacks_arguments,
    "WAITS_FOR_DEPENDENCIES": _waits_for_others,
    "STARTS_LATER": _starts_later,
    "NO_CLUSTERS": _has_no_clusters,
    "BETTER_IS_ASKED": _better_is_asked,
}


def _is_fresh(cluster: Cluster, book: Book, at: float) -> bool:
    return cluster.pushed() or at - cluster.heard_at <= 3 * book.settings.snapshot_interval_s


def _lacks_room(look: _Look) -> bool:
    """Is it not certain that one node has room, whatever of ours may be in no snapshot yet?"""
    if look.item.task.gang is not None or look.book.room_may_be_kept(look.at):
        return True
    ours: dict[str, float] = {}
    for one in look.one.live.values():
        for name, amount in one.task.placement.items():
            ours[name] = ours.get(name, 0.0) + amount
    used = look.one.most_used(look.at)
    return not any(
        all(
            amount + ours.get(name, 0.0) + used.get(node, {}).get(name, 0.0) <= total.get(name, 0.0)
            for name, amount in look.item.task.placement.items()
        )
        for node, total in look.one.totals().items()
    )


def _is_above(look: _Look) -> bool:
    """Is it not certain that less than the threshold is in use?"""
    limits = look.book.settings.resource_threshold
    totals, used = look.one.totals(), look.one.most_used(look.at)
    for name, limit in (("CPU", limits.cpu), ("memory", limits.memory), ("GPU", limits.gpu)):
        total = sum(one.get(name, 0.0) for one in totals.values())
        seen = sum(used.get(node, {}).get(name, 0.0) for node in totals)
        ours = sum(one.task.placement.get(name, 0.0) for one in look.one.live.values())
        kept = look.book.room_may_be_kept(look.at)  # for somebody else: then it counts as used
        if limit < 1 and total and (kept or (seen + ours) / total > limit - _ROUNDING):
            return True
    return False


def _is_serial(look: _Look) -> bool:
    busy = any(not (one.task.serves and one.started) for one in look.one.live.values())
    return look.book.settings.execution_mode == "serial" and busy


def _is_spaced(look: _Look) -> bool:
    settings, item = look.book.settings, look.item
    ruled = item.attempt == 0 and item.task.ruled_as in settings.submission_interval_kinds
    return ruled and look.at - look.one.last_submission < settings.submission_interval_s + _ROUNDING


def _has_jobs(look: _Look) -> bool:
    jobs = sum(one.task.kind == "job" for one in look.one.live.values())
    return look.item.task.kind == "job" and jobs >= look.one.metadata.max_running_jobs


def _is_too_big(look: _Look) -> bool:
    need = look.item.task.placement
    totals = list(look.one.totals().values())
    together = {name: sum(total.get(name, 0.0) for total in totals) for name in need}
    sizes = [together] if look.item.task.kind in ("job", "gang") else totals
    return not any(all(amount <= size.get(name, 0.0) for name, amount in need.items()) for size in sizes)


def _has_no_link(look: _Look) -> bool:
    return look.at - look.one.link_failed_at <= look.book.settings.breaker_recovery_s


_OF_CLUSTERS: dict[str, Callable[[_Look], bool]] = {
    "NO_CAPACITY": _lacks_room,
    "ABOVE_THRESHOLD": _is_above,
    "SERIAL": _is_serial,
    "SUBMISSION_INTERVAL": _is_spaced,
    "MAX_RUNNING_JOBS": _has_jobs,
    "MAX_IN_FLIGHT": lambda look: len(look.one.live) >= look.one.metadata.max_in_flight,
    "CORDONED": lambda look: look.one.cordoned,
    "QUEUE_PAUSED": lambda look: look.one.paused,
    "BREAKER_OPEN": lambda look: look.one.may_be_open,
    "CLUSTER_SUSPECT": lambda look: look.one.link == "down",
    "CLUSTER_DEAD": lambda look: look.one.dead_since is not None,
    "CLUSTER_LOST": lambda look: look.one.link == "down",
    "CLUSTER_UNKNOWN": lambda look: look.one.newest is None,
    "CLUSTER_UNREACHABLE": lambda look: look.one.failed_asking,
    "CLUSTER_MISCONFIGURED": lambda look: look.one.failed_asking,
    "STALE_SNAPSHOT": lambda look: not _is_fresh(look.one, look.book, look.at + _ROUNDING),
    "HEAD_SILENT": lambda look: not look.one.head_ok,
    "LINK_FAILED": _has_no_link,
    "DASHBOARD_SILENT": lambda look: look.item.task.kind == "job" and not look.one.dashboard_ok,
    "TOO_BIG": _is_too_big,
}


class UserErrorsNeverOpenABreaker(BookJudge):
    """A breaker may be open only where the cluster itself failed ``breaker_failures`` times in a row."""

    name = "user_errors_never_open_a_breaker"
    sentence = "Only failures of a cluster itself keep work away from it; exceptions and crashes of user code never do."

    def see(self, entry: Entry, book: Book) -> None:
        if type(entry.what) is not StateDump:
            return
        for name in entry.what.open_breakers:
            cluster = book.clusters.get(name)
            if cluster is not None and not cluster.may_be_open:
                self.accuse(entry, f"the breaker of {name} is open, and {name} has not failed that often")

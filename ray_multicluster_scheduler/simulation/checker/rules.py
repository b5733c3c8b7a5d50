"""rules_never_broken: interval, serial, threshold, caps, and what people closed."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist
from ray_multicluster_scheduler.simulation.checker.history_index import Entry
from ray_multicluster_scheduler.simulation.checker.history_state import Book
from ray_multicluster_scheduler.simulation.checker.item_history import Cluster, Item
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, is_placed

_ROUNDING = 1e-6


class RulesNeverBroken(BookJudge):
    """Looked at whenever an item is placed, by what the lines tell of the cluster just before."""

    name = "rules_never_broken"
    sentence = (
        "Nothing is sent against a rule: submission interval, serial mode, threshold, caps of clusters and owners, "
        "cordons, pauses, an item's own lists."
    )

    def see(self, entry: Entry, book: Book) -> None:
        if type(entry.what) is not Persist or not is_placed(entry.what, book):
            return
        step = entry.what.transition
        item, cluster = book.items[step.task_id], book.clusters.get(step.cluster or "")
        if cluster is None:
            self.accuse(entry, f"{step.task_id} is sent to {step.cluster}, which is not ours")
            return
        for sentence in (
            self._of_people(item, cluster, book),
            self._of_caps(item, cluster),
            self._of_interval(entry.at, item, cluster, book),
            self._of_serial(cluster, book),
            None if step.code == "SENT_AHEAD" else self._of_threshold(item, cluster, book),
        ):
            if sentence is not None:
                self.accuse(entry, f"{step.task_id} is sent to {cluster.name}: {sentence}")

    def _of_people(self, item: Item, cluster: Cluster, book: Book) -> str | None:
        if cluster.cordoned or cluster.paused:
            return "it is closed for new work"
        if not cluster.takes_kind(item):
            return "the item may not go there"
        if item.code == "HELD":
            return "the item is held"
        return None if book.may_start(item) else f"{item.task.owner or 'its owner'} is paused or at a limit"

    def _of_caps(self, item: Item, cluster: Cluster) -> str | None:
        if len(cluster.live) >= cluster.metadata.max_in_flight:
            return f"{len(cluster.live)} are there, and max_in_flight is {cluster.metadata.max_in_flight}"
        jobs = sum(one.task.kind == "job" for one in cluster.live.values())
        if item.task.kind == "job" and jobs >= cluster.metadata.max_running_jobs:
            return f"{jobs} jobs are there, and max_running_jobs is {cluster.metadata.max_running_jobs}"
        return None

    def _of_interval(self, at: float, item: Item, cluster: Cluster, book: Book) -> str | None:
        settings = book.settings
        if item.attempt > 0 or item.task.ruled_as not in settings.submission_interval_kinds:
            return None
        since = at - cluster.last_submission
        if since < settings.submission_interval_s - _ROUNDING:
            return f"{since:g} s after the last one; submission_interval_s is {settings.submission_interval_s:g}"
        return None

    def _of_serial(self, cluster: Cluster, book: Book) -> str | None:
        if book.settings.execution_mode != "serial":
            return None
        busy = [one.task.id for one in cluster.live.values() if not (one.task.serves and one.started)]
        return f"{busy[0]} runs there, and execution_mode is serial" if busy else None

    def _of_threshold(self, item: Item, cluster: Cluster, book: Book) -> str | None:
        limits = book.settings.resource_threshold
        totals = cluster.totals()
        for name, limit in (("CPU", limits.cpu), ("memory", limits.memory), ("GPU", limits.gpu)):
            total = sum(one.get(name, 0.0) for one in totals.values())
            if limit >= 1 or not total or (name == "GPU" and not item.task.placement.get(name)):
                continue
            used = cluster.surely_used(name)
            if used / total > limit + _ROUNDING:
                return f"{used:g} of {total:g} {name} is ours already, and the threshold is {limit:g}"
        return None

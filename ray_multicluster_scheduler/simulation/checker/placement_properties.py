"""Properties of placement: capacity, rules, order, starvation, and no delay on an idle fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist
from ray_multicluster_scheduler.simulation.checker.history_state import WINDOW_S, Book, Cluster, Item
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, Entry, Story, is_placed
from ray_multicluster_scheduler.simulation.history import AttemptBegan, AttemptEnded, NodesChanged

_ROUNDING = 1e-3


class ReservationsNeverExceedCapacity(BookJudge):
    """By truth: what runs on a node is no more than it has. By what was dispatched: nothing is sent to a cluster
    whose nodes are spoken for, nor where what was seen to run leaves no node for it."""

    name = "reservations_never_exceed_capacity"
    sentence = "What of ours is on a node never takes more than the node has, by what runs there and by what is sent."

    def beside_the_book(self, story: Story) -> None:
        nodes: dict[tuple[str, str], Mapping[str, float]] = {}
        running: dict[tuple[str, int], AttemptBegan] = {}
        for entry in story.some(AttemptBegan, AttemptEnded, NodesChanged):
            what = entry.what
            if isinstance(what, NodesChanged):
                nodes = {key: total for key, total in nodes.items() if key[0] != what.cluster}
                nodes |= {(what.cluster, node): total for node, total in what.nodes.items()}
            elif isinstance(what, AttemptEnded):
                running.pop((what.task_id, what.attempt), None)
            else:
                running[what.task_id, what.attempt] = what
                for node in what.parts:
                    there = [one.parts[node] for one in running.values() if _is_on(one, what.cluster, node)]
                    self._compare(entry, f"{node} of {what.cluster}", _sum(there), nodes.get((what.cluster, node)))

    def see(self, entry: Entry, book: Book) -> None:
        if type(entry.what) is not Persist or not is_placed(entry.what, book):
            return
        step = entry.what.transition
        cluster, item = book.clusters.get(step.cluster or ""), book.items[step.task_id]
        if cluster is None or cluster.newest is None or cluster.metadata.autoscaling or step.code == "SENT_AHEAD":
            return
        need, totals = item.task.placement, cluster.totals()
        taken = {name: amount + cluster.surely_used(name) for name, amount in need.items()}
        self._compare(entry, cluster.name, taken, _sum(totals.values()))
        if item.task.kind in ("task", "actor") and not any(self._has_room(cluster, node, need) for node in totals):
            self.accuse(entry, f"{step.task_id} is sent to {cluster.name}, and what runs there leaves no node for it")

    def _has_room(self, cluster: Cluster, node: str, need: Mapping[str, float]) -> bool:
        seen = _sum(one.takes for one in cluster.live.values() if one.node == node)
        total = cluster.totals()[node]
        return all(amount + seen.get(name, 0.0) <= total.get(name, 0.0) + _ROUNDING for name, amount in need.items())

    def _compare(self, entry: Entry, where: str, taken: Mapping[str, float], total: Mapping[str, float] | None) -> None:
        for name, amount in taken.items():
            if total is not None and amount > total.get(name, 0.0) + _ROUNDING:
                self.accuse(entry, f"{amount:g} {name} of ours on {where}, which has {total.get(name, 0.0):g}")


def _is_on(one: AttemptBegan, cluster: str, node: str) -> bool:
    return one.cluster == cluster and node in one.parts


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total


_TOLERANCE = 1e-6


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
        if since < settings.submission_interval_s - _TOLERANCE:
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
            if used / total > limit + _TOLERANCE:
                return f"{used:g} of {total:g} {name} is ours already, and the threshold is {limit:g}"
        return None


class Order(BookJudge):
    """Only items that placement cannot tell apart are compared: who could not have gone was not overtaken.

    Of one owner, priority and shape: strictly first come. Of one shape, the higher priority, unless ageing says
    otherwise; at one priority, an owner who holds nothing before one who holds something. Once a place may be kept for
    somebody, who is short may backfill where another may not, so then only the first of these is judged.
    """

    name = "order"
    sentence = (
        "Of items that could go alike, the more urgent goes first, then the owner who holds less, then the older."
    )

    def see(self, entry: Entry, book: Book) -> None:
        if type(entry.what) is not Persist or not is_placed(entry.what, book):
            return
        item = book.items[entry.what.transition.task_id]
        shape = item.shape
        alike = [one for one in book.waiting.values() if one is not item and one.shape == shape]
        if not alike:
            return
        self._first_come(entry, item, alike)
        if entry.what.transition.code != "SENT_AHEAD" and not book.room_may_be_kept(entry.at):
            others = [one for one in alike if book.may_start(one)]
            self._urgency(entry, item, others, book)
            self._share(entry, item, others, book)

    def _first_come(self, entry: Entry, item: Item, alike: list[Item]) -> None:
        for one in alike:
            if _line(one) == _line(item) and one.number < item.number:
                self.accuse(entry, f"{item.task.id} goes before {one.task.id}, which came first and waits for the same")
                return

    def _urgency(self, entry: Entry, item: Item, others: list[Item], book: Book) -> None:
        level = [one for one in book.waiting.values() if one.priority == item.priority]
        oldest = min((one.task.submitted_at for one in (item, *level)), default=0.0)
        best = oldest - item.priority * book.settings.ageing_s
        for one in others:
            urgency = one.task.submitted_at - one.priority * book.settings.ageing_s
            if one.priority > item.priority and urgency < best:
                self.accuse(
                    entry,
                    f"{item.task.id} (priority {item.priority}) goes before {one.task.id} (priority {one.priority})",
                )
                return

    def _share(self, entry: Entry, item: Item, others: list[Item], book: Book) -> None:
        if book.settings.order != "fair" or any(one.priority != item.priority for one in book.waiting.values()):
            return
        if not book.held_by(item.task.owner):
            return
        for one in others:
            if one.task.owner != item.task.owner and not book.held_by(one.task.owner):
                self.accuse(
                    entry,
                    f"{item.task.id} of {item.task.owner!r}, who holds something, goes before {one.task.id} of "
                    f"{one.task.owner!r}, who holds nothing",
                )
                return


def _line(item: Item) -> tuple[str, int]:
    return item.task.owner, item.priority


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
        if type(what) is AttemptBegan:
            self._began[what.task_id, what.attempt] = entry.at
        elif type(what) is AttemptEnded:
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

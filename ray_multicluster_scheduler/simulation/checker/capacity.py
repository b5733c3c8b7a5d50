"""reservations_never_exceed_capacity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist
from ray_multicluster_scheduler.simulation.checker.history_index import Entry, Story
from ray_multicluster_scheduler.simulation.checker.history_state import Book
from ray_multicluster_scheduler.simulation.checker.item_history import Cluster
from ray_multicluster_scheduler.simulation.checker.property import BookJudge, is_placed
from ray_multicluster_scheduler.simulation.history import Began, Nodes, Over

_ROUNDING = 1e-3


class ReservationsNeverExceedCapacity(BookJudge):
    """By truth: what runs on a node is no more than it has. By what was dispatched: nothing is sent to a cluster
    whose nodes are spoken for, nor where what was seen to run leaves no node for it."""

    name = "reservations_never_exceed_capacity"
    sentence = "What of ours is on a node never takes more than the node has, by what runs there and by what is sent."

    def beside_the_book(self, story: Story) -> None:
        nodes: dict[tuple[str, str], Mapping[str, float]] = {}
        running: dict[tuple[str, int], Began] = {}
        for entry in story.some(Began, Over, Nodes):
            what = entry.what
            if isinstance(what, Nodes):
                nodes = {key: total for key, total in nodes.items() if key[0] != what.cluster}
                nodes |= {(what.cluster, node): total for node, total in what.nodes.items()}
            elif isinstance(what, Over):
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


def _is_on(one: Began, cluster: str, node: str) -> bool:
    return one.cluster == cluster and node in one.parts


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total

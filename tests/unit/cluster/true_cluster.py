"""A cluster as it really is, of which the ledger only hears: for property tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement
from ray_multicluster_scheduler.scheduler.cluster.ledger import STALENESS_S, Ledger
from tests.unit.lifecycle.driver import job, task

TOTAL = {"n1": 8.0, "n2": 4.0, "n3": 4.0}
START_WITHIN_S = 1.5


@dataclass
class Item:
    """An attempt of ours: where it was expected, and what it really holds where once it runs."""

    expected: dict[str, float]
    sent_at: float
    holds: dict[str, float] = field(default_factory=dict)


@dataclass
class TrueCluster:
    """Three nodes, others that use a part of them, our items, and mail that may come late, twice, or never."""

    others: dict[str, float]
    obedient: bool = True
    ledger: Ledger = field(default_factory=Ledger)
    now: float = 100.0
    session: int = 1
    items: dict[str, Item] = field(default_factory=dict)
    past: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    mail: list[ResourceSnapshot] = field(default_factory=list)
    made: int = 0
    seen_by_agent: float = 0.0

    def __post_init__(self) -> None:
        self._remember()
        self.wait(10.0)
        self.take_snapshot("http", 0.0)
        self.deliver(0)

    # ---- what happens

    def wait(self, seconds: float) -> None:
        """Time passes; Ray starts what it was sent within a moment."""
        until = self.now + seconds
        pending = [(item.sent_at + START_WITHIN_S, name) for name, item in self.items.items() if not item.holds]
        for due, name in sorted(pending):
            if due <= until:
                self.now = max(self.now, due)
                self.start(name)
        self.now = until

    def send(self, cpus: int, *, is_job: bool = False) -> bool:
        """Place an item by the books, as a scheduling pass does."""
        name = f"t{self.made}"
        item = (job if is_job else task)(name, cpus=cpus)
        parts = find_placement(item, self.ledger.nodes())
        if parts is None:
            return False
        self.made += 1
        self.ledger.reserve(name, parts, self.now, spreads=is_job)
        self.items[name] = Item({node: part["CPU"] for node, part in parts.items()}, self.now)
        return True

    def start(self, name: str, node: str | None = None) -> None:
        """Ray starts it where we expected it, or, when it does not obey, where it likes and there is room."""
        item = self.items[name]
        if item.holds:
            return
        need = sum(item.expected.values())
        if self.obedient or len(item.expected) > 1:
            item.holds = dict(item.expected)
        elif node is not None and self.free(node) >= need:
            item.holds = {node: need}
        else:
            roomy = [one for one in TOTAL if self.free(one) >= need]
            item.holds = {roomy[0]: need} if roomy else {}
        self._remember()
        if len(item.holds) == 1:
            self.ledger.move(name, next(iter(item.holds)), self.now)

    def end(self, name: str) -> None:
        del self.items[name]
        self._remember()
        self.ledger.release(name, self.now)

    def others_use(self, node: str, cpus: float) -> None:
        """Another user comes or goes, as far as there is room."""
        self.others[node] = min(cpus, TOTAL[node] - self._ours(node))
        self._remember()

    def restart(self) -> None:
        """The head dies and comes back: another session, nothing runs."""
        for name in list(self.items):
            self.end(name)
        self.session += 1
        self.others = dict.fromkeys(TOTAL, 0.0)
        self.past.clear()
        self._remember()

    def take_snapshot(self, source: Any, delay: float) -> None:
        """It shows some moment within its staleness; ``delay`` is how long ago, as a share of that."""
        moment = self.now - delay * STALENESS_S[source]
        if source == "agent":  # it never goes back in time
            moment = self.seen_by_agent = max(moment, self.seen_by_agent)
        used = [use for at, use in self.past if at <= moment] or [self.past[0][1]]
        nodes = tuple(
            NodeSnapshot(node, {"CPU": total}, {"CPU": total - used[-1][node]}) for node, total in TOTAL.items()
        )
        self.mail.append(ResourceSnapshot("c", self.now, nodes, source, f"s{self.session}"))

    def deliver(self, index: int, *, keep: bool = False) -> None:
        """One of the letters that are on their way arrives; ``keep``: it will come once more."""
        if self.mail:
            index %= len(self.mail)
            self.ledger.observe(self.mail[index] if keep else self.mail.pop(index))

    # ---- the truth

    def free(self, node: str) -> float:
        return TOTAL[node] - self.others[node] - self._ours(node)

    def _ours(self, node: str) -> float:
        return sum(item.holds.get(node, 0.0) for item in self.items.values())

    def _remember(self) -> None:
        use = {node: self.others[node] + self._ours(node) for node in TOTAL}
        self.past.append((self.now, use))

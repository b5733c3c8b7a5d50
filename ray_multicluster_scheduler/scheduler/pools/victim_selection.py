"""plan_preemption: chooses which running items leave for a newcomer, and where it starts.

A target is a node, or a place that decides itself. Targets are found by ascending priority of the victims that make
room there, and tried from the cheapest on: take victims for the room, take victims for the quota, give back those that
are not needed. The set is irreducible: with any of its victims less, the newcomer would fit at no target, or a
rule would be broken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from operator import itemgetter

from ray_multicluster_scheduler.scheduler.pools.possible_victims import (
    ROUNDING,
    Option,
    PossibleVictims,
    Target,
    option_of,
)
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import (
    FITS_NOW,
    NO_VICTIM,
    WOULD_NOT_FIT,
    Candidate,
    Cost,
    Newcomer,
    NoPlan,
    Place,
    PreemptionPlan,
    RunningItem,
)
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import PreemptionRules
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.pools.rule_check import RuleCheck
from ray_multicluster_scheduler.scheduler.pools.victim_set import VictimSet

MAX_STEPS = 1_000
"""Steps after which no further target is tried: a step checks one victim, and each target costs ten more. It bounds the
time; a cheaper plan may exist that was not found, or, seldom, one at all if what pools borrow decides who may leave."""
MAX_EXTRA = 16
"""Items of other pools that these sets are made of."""


def plan_preemption(
    newcomer: Newcomer,
    places: Sequence[Place],
    running: Sequence[RunningItem],
    ledger: QuotaLedger,
    rules: PreemptionRules,
    now: float,
) -> PreemptionPlan | NoPlan:
    """Which items leave for the newcomer, or why none does.

    Items that are ``leaving`` are counted as gone from their pools, since the claims of those for whom they leave are
    in the ledger; the room that they hold is not counted as free. A claim of the newcomer itself does not count.
    """
    found = _Search(newcomer, places, running, ledger, rules, now, by_priority=True).best()
    while isinstance(found, PreemptionPlan) and len(found.victims) > 1:
        chosen = {victim.id for victim in found.victims}
        some = [item for item in running if item.leaving or item.id in chosen]
        names = {found.place, *(item.place for item in some)}
        near = [place for place in places if place.name in names]
        smaller = _Search(newcomer, near, some, ledger, rules, now, by_priority=False).best()
        if not isinstance(smaller, PreemptionPlan) or len(smaller.victims) >= len(found.victims):
            break
        found = smaller
    return found


def list_candidates(
    newcomer: Newcomer,
    running: Sequence[RunningItem],
    ledger: QuotaLedger,
    rules: PreemptionRules,
    now: float,
    place: str,
) -> list[Candidate]:
    """Each running item, and why it may or may not give way to a newcomer at this place if it was the first; possible
    victims first, in the order in which they are considered."""
    check = RuleCheck(newcomer, rules, _trial(newcomer, running, ledger), now)
    listed = [(option_of(item, now), check.verdict(item, place)) for item in running]
    listed.sort(key=lambda row: (not row[1].allowed, row[0]))
    return [
        Candidate(name, item.place, priority, lost, rank if verdict.allowed else None, verdict.code, verdict.sentence)
        for rank, ((priority, lost, _, name, item), verdict) in enumerate(listed, start=1)
    ]


def _trial(newcomer: Newcomer, running: Sequence[RunningItem], ledger: QuotaLedger) -> QuotaLedger:
    """A copy of the ledger, as it will be when those that are leaving have left."""
    trial = ledger.copy()
    trial.release(newcomer.id)
    for item in running:
        if item.leaving:
            trial.release(item.id)
    return trial


class _Search:
    """One search for victims; used once."""

    def __init__(
        self,
        newcomer: Newcomer,
        places: Sequence[Place],
        running: Sequence[RunningItem],
        ledger: QuotaLedger,
        rules: PreemptionRules,
        now: float,
        *,
        by_priority: bool,
    ) -> None:
        self._newcomer, self._places = newcomer, places
        self._ledger = _trial(newcomer, running, ledger)
        self._check = RuleCheck(newcomer, rules, self._ledger, now)
        self._possible = PossibleVictims(running, self._check, now, by_priority=by_priority)
        self._best: PreemptionPlan | None = None
        self._tried: list[Target] = []
        self._rejected: dict[str, Place] = {}
        """Places that did not accept a set of victims which made room on a node."""
        self._quota_refusals: list[str] = []
        self._steps = 0

    def best(self) -> PreemptionPlan | NoPlan:
        """The cheapest plan that was found."""
        for cost, target in self._find_targets():
            if self._steps >= MAX_STEPS or (self._best is not None and cost >= self._best.cost):
                break
            self._tried.append(target)
            self._keep(self._try(target))
        if self._best is None:
            self._try_harder()
        if self._best is None:
            return self._no_plan()
        if not self._best.victims:
            sentence = "there is room and quota for it, or will be when those that are leaving have left"
            return NoPlan(self._newcomer.id, FITS_NOW, sentence)
        return self._best

    def _keep(self, plan: PreemptionPlan | None) -> None:
        if plan is not None and (self._best is None or plan.cost < self._best.cost):
            self._best = plan

    def _try_harder(self) -> None:
        """Ask the places that rejected a set how much more they need. Then start with other sets, since victims may not
        have been allowed after others had been taken."""
        self._possible.read_all()
        by_place = [Target(place, None, {}) for place in self._rejected.values()]
        for target in by_place:
            self._keep(self._try(target))
        self._steps = 0
        for target in [*self._tried, *by_place] if self._check.depends_on_ledger else []:
            if self._best is not None or self._steps >= MAX_STEPS:
                break
            self._keep(self._try_starts(target))

    # ---- targets

    def _find_targets(self) -> Iterator[tuple[Cost, Target]]:
        """The targets by ascending cost. Victims are added by ascending priority. A target is reached when all victims
        so far free the quota that is missing at its place, and the room."""
        by_node: dict[tuple[str, str], Target] = {}
        reached: dict[str, list[Target]] = {}
        for place in self._places:
            reached[place.name] = self._reached_at_once(place, by_node)
        refused = self._refused_places(self._ledger, self._places)
        emptied = self._ledger.copy() if refused else self._ledger
        for number, priority in enumerate([-inf, *self._possible.priorities], start=-1):
            if number >= 0:
                level = self._possible.level(number)
                for option in level:
                    item = option[4]
                    for node, held in item.nodes.items():
                        target = by_node.get((item.place, node))
                        if target is not None and target.add(option, held):
                            reached[item.place].append(target)
                if refused:
                    emptied.release_all(option[3] for option in level)
                    refused = self._refused_places(emptied, refused.values())
            ready = [target for name, targets in reached.items() if name not in refused for target in targets]
            reached.update({name: [] for name in reached if name not in refused})
            yield from sorted(((target.cost(priority), target) for target in ready), key=itemgetter(0))
            if self._best is not None:
                break

    def _reached_at_once(self, place: Place, by_node: dict[tuple[str, str], Target]) -> list[Target]:
        """The target that needs no victims for its room. If there is none, all nodes are added to ``by_node``."""
        need = self._newcomer.need
        if need is None:
            self._possible.read_all()
            return [Target(place, None, {})]
        targets = []
        for node, free in place.free.items():
            missing = {name: amount - free.get(name, 0.0) for name, amount in need.items()}
            target = Target(place, node, {name: short for name, short in missing.items() if short > ROUNDING})
            if not target.missing:
                return [target]
            targets.append(target)
        by_node.update({(place.name, target.node or ""): target for target in targets})
        return []

    def _refused_places(self, ledger: QuotaLedger, places: Iterable[Place]) -> dict[str, Place]:
        """The places where the newcomer's pool lacks quota."""
        new = self._newcomer
        if new.pool is None:
            return {}
        refusals = [(place, ledger.refusal(new.pool, new.amounts, place.name)) for place in places]
        self._quota_refusals = [refusal.sentence for _, refusal in refusals if refusal is not None]
        return {place.name: place for place, refusal in refusals if refusal is not None}

    # ---- sets of victims

    def _try(self, target: Target) -> PreemptionPlan | None:
        """Take victims in order until the newcomer fits, and give back those that are not needed."""
        chosen = VictimSet(self._newcomer, self._check, target.place, target.node)
        plan = self._complete(chosen, target)
        chosen.clear()
        self._steps += 10 + chosen.steps
        return plan

    def _complete(self, chosen: VictimSet, target: Target) -> PreemptionPlan | None:
        if not chosen.make_room(self._options_at(target)) or not chosen.free_quota(self._options_with_quota()):
            return None
        chosen.give_back()
        plan = chosen.plan()
        if plan is None:
            self._rejected[target.place.name] = target.place
        return plan

    def _options_at(self, target: Target) -> list[Option]:
        if target.node is not None:
            return target.options
        return [option for option in self._possible.known() if option[4].place == target.place.name]

    def _options_with_quota(self) -> Iterator[Option]:
        """Those who may free quota for the newcomer by leaving."""
        pool = self._ledger.pools.get(self._newcomer.pool or "")
        pools = {other.name for other in self._ledger.cohort_of(pool)} if pool is not None else set()
        return (option for option in self._possible.known() if option[4].pool in pools)

    def _try_starts(self, target: Target) -> PreemptionPlan | None:
        """Start with each set from other pools that the rules allow, from the smallest on."""
        chosen = VictimSet(self._newcomer, self._check, target.place, target.node)
        useful = {option[3]: option for option in (*self._options_at(target), *self._options_with_quota())}
        extra = [option for option in useful.values() if option[4].pool != self._newcomer.pool][:MAX_EXTRA]
        waiting, tried = deque[tuple[Option, ...]]([()]), set[frozenset[str]]()
        plan: PreemptionPlan | None = None
        while plan is None and waiting and self._steps + chosen.steps < MAX_STEPS:
            start = waiting.popleft()
            names = frozenset(option[3] for option in start)
            if names in tried:
                continue
            if all(map(chosen.take, start)):
                tried.add(names)
                waiting.extend((*start, option) for option in extra if option[3] not in names)
                plan = self._complete(chosen, target)
            chosen.clear()
        self._steps += 10 + chosen.steps
        return plan

    # ---- refusals

    def _no_plan(self) -> NoPlan:
        if not next(self._possible.known(), None):
            counts = ", ".join(f"{count} {code}" for code, count in sorted(self._possible.read_all().items()))
            return self._refuse(NO_VICTIM, f"no running item may give way to it: {counts or 'none runs'}")
        if self._quota_refusals and not self._tried:
            return self._refuse(WOULD_NOT_FIT, f"even without all possible victims, {self._quota_refusals[0]}")
        if not self._tried:
            return self._refuse(WOULD_NOT_FIT, "it would have no room, even if all possible victims left")
        return self._refuse(WOULD_NOT_FIT, "no set of victims that the rules allow would make it fit")

    def _refuse(self, code: str, sentence: str) -> NoPlan:
        return NoPlan(self._newcomer.id, code, sentence, self._possible.read_all())

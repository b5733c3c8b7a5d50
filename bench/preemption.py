"""Benchmark of preemption decisions. Pure: no Ray, no network, one thread.

python -m bench.preemption [--json] [--items 10000] [--rounds 20] [--cases 10000] [--seed 0]

time    A decision over 10,000 running items on 20 clusters with 50 full nodes each: milliseconds of CPU time, median
        and maximum, for several newcomers.
cost    Plans in random small fleets, compared with brute force: how much more work is lost than by the set of victims
        that loses least, as a share of that. Priority comes before lost work, so once more for sets without a victim
        of a higher priority than the plan has.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench._preemption_evaluator import NOW, SmallPlace, random_case
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, Reclaim
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import Newcomer, PreemptionPlan, RunningItem
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import PreemptionRules
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.pools.victim_selection import plan_preemption

CLUSTERS, NODES, POOLS, CPUS = 20, 50, 50, 4.0
NEWCOMERS = {
    "by priority, no pools": (None, 20, 8.0),
    "by priority, quota and room missing": ("quota", 20, 8.0),
    "by reclaim": ("lent", 0, 8.0),
    "by reclaim, eight victims": ("lent", 0, 30.0),
    "no victim": (None, -1, 8.0),
}
"""By title: the kind of the pools, the newcomer's priority, and its CPUs."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    document = {
        "bench": "preemption",
        "items": options.items,
        "time_ms": {title: measure(options.items, options.rounds, *new) for title, new in NEWCOMERS.items()},
        "extra_lost_work": compare(options.cases, options.seed),
    }
    print(json.dumps(document) if options.json else table(document))
    return 0


def table(document: dict[str, Any]) -> str:
    lines = [f"A decision over {document['items']:,} running items, in milliseconds of CPU time:"]
    lines += [
        f"  {title:36} {one['median']:6.1f}, at most {one['max']:.1f}" for title, one in document["time_ms"].items()
    ]
    extra = document["extra_lost_work"]
    lines.append(
        f"Work lost beyond that of the cheapest set, in {extra['plans']:,} plans for {extra['cases']:,} fleets:"
    )
    for title in ("of_all_sets", "without_higher_priorities"):
        lines.append(f"  {title:36} mean {extra[title]['mean']:.1%}, p99 {extra[title]['p99']:.0%}")
    return "\n".join(lines)


# ---- time


def measure(items: int, rounds: int, kind: str | None, priority: float, cpus: float) -> dict[str, float]:
    """Milliseconds of CPU time of one decision."""
    ledger, running = _full_fleet(items, kind)
    need = {"CPU": cpus}
    full = {f"node{node}": {"CPU": 0.0} for node in range(NODES)}
    places = [SmallPlace(f"cluster{at}", full, need, 1) for at in range(CLUSTERS)]
    pool = None if kind is None else f"pool{POOLS - 1}"
    new = Newcomer(id="new", pool=pool, priority=priority, amounts=need, need=need)
    times = []
    for _ in range(rounds):
        began = time.process_time()
        plan_preemption(new, places, running, ledger, PreemptionRules(), NOW)
        times.append((time.process_time() - began) * 1000)
    return {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}


_LENT: tuple[str | None, Reclaim] = ("all", "any")
_ALONE: tuple[str | None, Reclaim] = (None, "never")
"""Cohort and reclaim of the pools."""


def _full_fleet(items: int, kind: str | None) -> tuple[QuotaLedger, list[RunningItem]]:
    """All quota is used. The last pool lends all that it has if the kind is ``lent``."""
    rng, quota = random.Random(1), {"CPU": items * CPUS / POOLS}
    cohort, reclaim = _LENT if kind == "lent" else _ALONE
    names = [] if kind is None else [f"pool{at}" for at in range(POOLS)]
    ledger = QuotaLedger(Pool(name=name, quota=quota, cohort=cohort, reclaim=reclaim) for name in names)
    running = []
    for at in range(items):
        pool = rng.choice(names[: POOLS - 1] if kind == "lent" else names) if names else None
        place, node = f"cluster{at % CLUSTERS}", f"node{at // CLUSTERS % NODES}"
        running.append(
            RunningItem(
                id=f"item{at}",
                pool=pool,
                priority=rng.randrange(6),
                preemptible=True,
                place=place,
                nodes={node: {"CPU": CPUS}},
                started_at=NOW - rng.uniform(100, 10_000),
                saved_at=NOW - rng.uniform(0, 100) if rng.random() < 0.5 else None,
            )
        )
        if pool is not None:
            ledger.reserve(f"item{at}", pool, {"CPU": CPUS}, place)
            ledger.commit(f"item{at}")
    return ledger, running


# ---- cost


def compare(cases: int, seed: int) -> dict[str, Any]:
    """How much more work plans lose than the cheapest set, as a share of what that one loses."""
    rng = random.Random(seed)
    beyond_all, beyond_priority = [], []
    for _ in range(cases):
        case = random_case(rng)
        plan = case.plan()
        if not isinstance(plan, PreemptionPlan):
            continue
        highest = plan.cost.highest_priority
        lost = {gone: cost for gone, cost in case.good_sets.items() if gone}
        low = [cost for gone, cost in lost.items() if all(case.item(name).priority <= highest for name in gone)]
        beyond_all.append(plan.cost.lost_s / min(lost.values()) - 1)
        beyond_priority.append(plan.cost.lost_s / min(low) - 1)
    return {
        "cases": cases,
        "plans": len(beyond_all),
        "of_all_sets": _summary(beyond_all),
        "without_higher_priorities": _summary(beyond_priority),
    }


def _summary(shares: Sequence[float]) -> dict[str, float]:
    return {
        "mean": round(statistics.mean(shares), 4),
        "p99": round(statistics.quantiles(shares, n=100)[98], 4),
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.preemption", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--items", type=int, default=10_000, help="running items")
    parser.add_argument("--rounds", type=int, default=20, help="decisions for each newcomer")
    parser.add_argument("--cases", type=int, default=10_000, help="random small fleets")
    parser.add_argument("--seed", type=int, default=0, help="of the random fleets")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

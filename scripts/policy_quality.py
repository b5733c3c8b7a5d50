"""Measure the quality of placement policies by simulation, for the table and the plot of docs/policies.md.

python scripts/policy_quality.py [--seeds 1,2,3,4,5] [--hours 24] [--docs docs] [--check]

Three clusters of different size and speed, load 0.9, a fifth of the items wide, threshold and interval off. Makespans
are compared with a lower bound for any scheduler, waits with those of round robin over the same queue and ledger; then
again with the default rules on. Writes the marked section of docs/policies.md, and docs/policy_quality.svg. With
--check the exit code is 1 if the default policy misses a floor.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.simulation import Result, SimulatedFleet, Synthetic, cluster, lower_bound, simulate
from ray_multicluster_scheduler.simulation.report.report_text import format_duration

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- policy quality: begin -->", "<!-- policy quality: end -->"
CLUSTERS = (("large", "4x{CPU:16}", 1.0, ()), ("fast", "2x{CPU:16}", 1.6, ("fast",)), ("old", "4x{CPU:8}", 0.7, ()))
RECIPE = "load=0.9 over={hours}h run=lognormal:120,0.8 sizes=1,2,4 wide=0.2:8 require=fast:0.1 owners=ann,bob,eve"
FREE: dict[str, Any] = {"resource_threshold": 1, "submission_interval_s": 0}
POLICIES: dict[str, dict[str, Any]] = {
    "round robin": {**FREE, "weights": {}},
    "load (default)": FREE,
    "pack": {**FREE, "weights": {"pack": 1.0}},
    "default rules on": {},
}
BASE, RULES = "round robin", "default rules on"
MAKESPAN_FLOOR, WAIT_FLOOR = 1.15, 0.9


@dataclass(frozen=True)
class Run:
    """One policy on the workload of one seed."""

    seed: int
    policy: str
    items: int
    makespan: float
    """Makespan divided by the lower bound."""
    p95: float
    mean: float
    by_round_robin: float = 1.0


def fleet(settings: dict[str, Any]) -> SimulatedFleet:
    """The fleet; each cluster's weight is its speed, as an operator would set it."""
    made = [cluster(name, nodes, speed=speed, weight=speed, tags=tags) for name, nodes, speed, tags in CLUSTERS]
    return SimulatedFleet(tuple(made), Settings(**settings))


def measure(seeds: Sequence[int], hours: float) -> list[Run]:
    runs = []
    for seed in seeds:
        work = Synthetic.parse(RECIPE.format(hours=hours)).generate(seed, fleet(FREE))
        bound, base = lower_bound(fleet(FREE), work), 0.0
        for policy, settings in POLICIES.items():
            began = time.process_time()
            result = simulate(fleet(settings), work, seed=seed)
            p95 = _p95(result)
            base = base or p95
            share = p95 / base if base else 1.0
            mean = float(result.wait_s["mean"] or 0.0)
            runs.append(Run(seed, policy, len(work), result.makespan_s / bound, p95, mean, share))
            took = time.process_time() - began
            print(f"seed {seed}, {policy}: {len(work)} items in {took:.0f} s", file=sys.stderr, flush=True)
    return runs


def _p95(result: Result) -> float:
    return float(result.wait_s["p95"] or 0.0)


def table(runs: Sequence[Run], hours: float) -> str:
    """Markdown: one line for each seed, then the means, then the cost of the rules."""
    names = [name for name in POLICIES if name != RULES]
    head = [f"makespan / bound, {name}" for name in names] + [f"p95 wait, {name}" for name in names]
    lines = [_row(["seed", "items", *head]), _row(["---"] * (2 + len(head)))]
    for seed in dict.fromkeys(run.seed for run in runs):
        of = {run.policy: run for run in runs if run.seed == seed}
        waits = [f"{format_duration(of[name].p95)} (×{of[name].by_round_robin:.2f})" for name in names]
        lines.append(_row([str(seed), f"{of[BASE].items:,}", *(f"{of[name].makespan:.3f}" for name in names), *waits]))
    worst = [f"{_worst(runs, name):.3f}" for name in names]
    means = [f"×{_mean_share(runs, name):.2f}" for name in names]
    lines.append(_row(["worst makespan, mean wait", "", *worst, *means]))
    rules, free = _only(runs, RULES), _only(runs, "load (default)")
    spans = [_mean(run.makespan for run in some) for some in (rules, free)]
    waits = [format_duration(_mean(run.mean for run in some)) for some in (rules, free)]
    cost = (
        "With the default rules on (`resource_threshold: 0.7`; the interval is for jobs, of which there are none), the "
        f"makespan is {spans[0]:.2f} × the bound instead of {spans[1]:.2f}, and the mean wait {waits[0]} instead of "
        f"{waits[1]}: at 70 % of its CPUs a cluster accepts no more work, and a load of 0.9 exceeds that."
    )
    verdicts = "\n".join(f"- {sentence}" for sentence in judge(runs))
    made = f"Made by `python scripts/policy_quality.py --hours {hours:g}`; `{RECIPE.format(hours=f'{hours:g}')}`."
    return f"{made}\n\n" + "\n".join(lines) + f"\n\n{verdicts}\n\n{cost}\n"


def judge(runs: Sequence[Run]) -> list[str]:
    """One sentence for each floor and policy."""
    verdicts = []
    for name in POLICIES:
        if name not in (BASE, RULES):
            worst, share = _worst(runs, name), _mean_share(runs, name)
            shares = [run.by_round_robin for run in _only(runs, name)]
            verdicts.append(
                f"`{name}`: makespan at most {worst:.3f} × the bound (floor {MAKESPAN_FLOOR}: "
                f"{_held(worst <= MAKESPAN_FLOOR)}); p95 wait {share:.2f} × that of round robin in the geometric mean, "
                f"{min(shares):.2f} to {max(shares):.2f} by seed (floor {WAIT_FLOOR}: {_held(share <= WAIT_FLOOR)} in "
                f"the mean, held for {sum(one <= WAIT_FLOOR for one in shares)} of {len(shares)} seeds)."
            )
    return verdicts


def floors_hold(runs: Sequence[Run], name: str) -> bool:
    shares = [run.by_round_robin for run in _only(runs, name)]
    return _worst(runs, name) <= MAKESPAN_FLOOR and max(shares) <= WAIT_FLOOR


def picture(runs: Sequence[Run]) -> str:
    """An SVG bar chart of the p95 wait of each policy, by seed."""
    names = [name for name in POLICIES if name != RULES]
    colours = dict(zip(names, ("#9aa5b1", "#d8703b", "#3b7dd8"), strict=True))
    seeds = list(dict.fromkeys(run.seed for run in runs))
    most = max((run.p95 for run in runs if run.policy in names), default=0.0) or 1.0
    group, bar, height, left = 150, 40, 220, 70
    parts = [f'<text x="8" y="20">p95 wait</text><text x="8" y="{40}">{format_duration(most)}</text>']
    for number, seed in enumerate(seeds):
        for place, name in enumerate(names):
            run = next(one for one in runs if one.seed == seed and one.policy == name)
            x, tall = left + number * group + place * bar, height * run.p95 / most
            parts.append(
                f'<rect x="{x}" y="{30 + height - tall:.1f}" width="{bar - 4}" height="{tall:.1f}" '
                f'fill="{colours[name]}"><title>{name}: {format_duration(run.p95)}</title></rect>'
            )
        parts.append(f'<text x="{left + number * group + 36}" y="{height + 48}">seed {seed}</text>')
    for place, name in enumerate(names):
        x = left + place * 170
        parts.append(f'<rect x="{x}" y="{height + 62}" width="14" height="14" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 20}" y="{height + 74}">{name}</text>')
    width = left + max(len(seeds) * group, 3 * 170)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 86}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def write(docs: Path, runs: Sequence[Run], hours: float) -> None:
    page = docs / "policies.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{table(runs, hours)}\n{END}{after}", encoding="utf-8")
    (docs / "policy_quality.svg").write_text(picture(runs), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2, 3, 4, 5])
    parser.add_argument("--hours", type=float, default=24.0, help="duration of the arrivals")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder with policies.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the default policy misses a floor")
    options = parser.parse_args(arguments)
    runs = measure(options.seeds, options.hours)
    write(options.docs, runs, options.hours)
    print(table(runs, options.hours))
    return int(options.check and not floors_hold(runs, "load (default)"))


def _only(runs: Sequence[Run], policy: str) -> list[Run]:
    return [run for run in runs if run.policy == policy]


def _worst(runs: Sequence[Run], policy: str) -> float:
    return max(run.makespan for run in _only(runs, policy))


def _mean_share(runs: Sequence[Run], policy: str) -> float:
    """The geometric mean: twice as long and half as long cancel each other."""
    shares = [run.by_round_robin for run in _only(runs, policy)]
    return math.prod(shares) ** (1 / len(shares))


def _mean(numbers: Any) -> float:
    known = list(numbers)
    return sum(known) / len(known)


def _held(yes: bool) -> str:
    return "held" if yes else "missed"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())

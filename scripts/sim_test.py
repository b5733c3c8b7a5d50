"""Run many seeds of faulty runs of the scheduler machine on all cores, and check their histories.

python scripts/sim_test.py [--seeds 10000] [--first 0] [--items 80] [--style NAME] [--jobs 2] [--out sim-failures]

Prints runs, steps (events fed to a machine), faults and violations. A failing seed is shrunk, and the smallest
run that still fails is written to a file for `rmcs replay`. Exit code 1 if any property was violated.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ray_multicluster_scheduler.simulation.faulty.campaign import Tally, run_seeds, write_smallest  # noqa: E402
from ray_multicluster_scheduler.simulation.faulty.scenario import (  # noqa: E402
    ITEMS,
    STYLES,
    generate_scenario,
)

SHRUNK = 5
"""How many failing seeds are shrunk; the others are only listed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--items", type=int, default=ITEMS, help="items in a run")
    parser.add_argument("--style", choices=sorted(STYLES), default=None, help="default: all in turn")
    parser.add_argument("--jobs", type=int, default=None, help="processes; default: one per core")
    parser.add_argument("--out", type=Path, default=Path("sim-failures"))
    given = parser.parse_args()
    began, printed_at, total = time.monotonic(), 0.0, Tally()
    for total in run_seeds(given.first, given.seeds, given.jobs, given.items, given.style):
        passed = time.monotonic() - began
        if passed > printed_at + 30:
            printed_at = passed
            print(_line(total, passed), flush=True)
    print(_line(total, time.monotonic() - began))
    for name, number in total.broken.most_common():
        print(f"  {name}: violated in {number} runs")
    for seed, names in sorted(total.failed.items())[:SHRUNK]:
        if names[0].startswith("the_machine"):
            print(f"seed {seed}: {', '.join(names)}")
            continue
        scenario = generate_scenario(seed, given.items, STYLES[given.style] if given.style else None)
        path, small = write_smallest(scenario, names[0], given.out)
        print(f"seed {seed}: {', '.join(names)}; shrunk to {len(small.actions)} actions: rmcs replay {path}")
    rest = sorted(total.failed)[SHRUNK:]
    if rest:
        print(f"and seeds {', '.join(map(str, rest[:50]))}")
    return 1 if total.failed else 0


def _line(total: Tally, passed: float) -> str:
    failed = f" (seeds {', '.join(map(str, sorted(total.failed)[:10]))})" if total.failed else ""
    return (
        f"{total.runs} runs, {total.steps} steps, {total.faults} faults (at least {total.fewest_faults} in a run), "
        f"{len(total.failed)} runs with violations{failed}, {passed:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())

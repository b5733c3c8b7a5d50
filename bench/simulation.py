"""Benchmark of a simulated day. Pure: the production SchedulerMachine in virtual time, one thread.

python -m bench.simulation [--json] [--items 100000] [--clusters 20] [--load 0.7]

Items of 1 to 4 CPUs, a fifth of them wide (8), of three owners and two priorities, arrive over a day on clusters of
different size and speed; run times are lognormal, and such that they keep this share of all CPUs busy. `digest` is that
of all figures: the same on every machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any

from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.simulation import SimulatedFleet, Simulation, Synthetic, cluster

_SIGMA = 1.0
_MEAN_CPUS = 0.8 * 7 / 3 + 0.2 * 8


def fleet(count: int) -> SimulatedFleet:
    """Four to eight nodes of 16 or 32 CPUs each, four speeds."""
    clusters = [
        cluster(f"c{number:02}", f"{4 + number % 5}x{{CPU:{16 if number % 2 else 32}}}", speed=1 + 0.1 * (number % 4))
        for number in range(count)
    ]
    return SimulatedFleet(tuple(clusters), Settings(resource_threshold=1))


def run(items: int, clusters: int, load: float) -> dict[str, Any]:
    """Simulate once; the times cover the run alone."""
    where = fleet(clusters)
    mean_s = load * where.capacity() * 86_400 / (items * _MEAN_CPUS)
    median_s = mean_s / 2.718281828 ** (_SIGMA**2 / 2)
    recipe = f"items={items} over=24h arrivals=daily:0.3 run=lognormal:{median_s:.3f},{_SIGMA} wide=0.2:8"
    work = Synthetic.parse(f"{recipe} owners=ann,bob,eve priorities=0:9,5:1").generate(1)
    simulation = Simulation(where, work, seed=1)
    wall, cpu = time.perf_counter(), time.process_time()
    result = simulation.run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "bench": "simulation",
        "items": items,
        "clusters": clusters,
        "load": load,
        "succeeded": result.succeeded,
        "machine_steps": simulation.steps,
        "cpu_s": round(cpu, 2),
        "wall_s": round(wall, 2),
        "items_per_cpu_s": round(items / cpu),
        "digest": hashlib.sha256(result.to_json(series=True).encode()).hexdigest()[:16],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--load", type=float, default=0.7)
    options = parser.parse_args(arguments)
    figures = run(options.items, options.clusters, options.load)
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

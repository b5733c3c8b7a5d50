"""Small tasks through one local cluster: the round trip of one, and how many a second.

python -m bench.small_tasks [--json] [--round-trips 200] [--tasks 2000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import ray_multicluster_scheduler as rmcs

WARM_UP = 200
"""Tasks before anything is measured: the first ones on a cold cluster run at a third of the speed."""


def measure(round_trips: int, tasks: int) -> dict[str, float]:
    """Milliseconds per sequential no-op, and no-ops per second when all are submitted at once."""

    def nothing() -> None:
        return None

    rmcs.get([rmcs.submit_task_async(nothing) for _ in range(WARM_UP)])
    single = []
    for _ in range(round_trips):
        began = time.perf_counter()
        rmcs.submit_task(nothing)
        single.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()
    rmcs.get([rmcs.submit_task_async(nothing) for _ in range(tasks)])
    rate = tasks / (time.perf_counter() - began)
    quantiles = statistics.quantiles(single, n=100)
    return {"round_trip_p50_ms": quantiles[49], "round_trip_p99_ms": quantiles[98], "tasks_per_s": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    parser.add_argument("--round-trips", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=2000)
    options = parser.parse_args()
    settings = {"submission_interval_s": 0, "resource_threshold": 1}
    with rmcs.LocalFleet(rmcs.LocalCluster("local", num_cpus=2), settings=settings) as fleet:
        rmcs.initialize_scheduler_environment(fleet.config_path)
        try:
            figures = measure(options.round_trips, options.tasks)
        finally:
            rmcs.shutdown()
    if options.json:
        print(json.dumps({"bench": "small_tasks", **{name: round(value, 2) for name, value in figures.items()}}))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:10.2f}")


if __name__ == "__main__":
    main()

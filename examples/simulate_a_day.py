"""Simulates a day of work on three clusters and compares policies, settings and an additional cluster.

python examples/simulate_a_day.py [--hours 24] [--plot day.html]

Contacts no cluster; the scheduler is the one of production. Runs as a script or cell by cell.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.simulation import (
    OthersLoad,
    PlannedFault,
    SimulatedFleet,
    Synthetic,
    cluster,
    compare,
    lower_bound,
    plot,
)
from ray_multicluster_scheduler.simulation.report.report_text import format_duration

parser = argparse.ArgumentParser()
parser.add_argument("--hours", type=float, default=24.0)
parser.add_argument("--plot", type=Path)
options = parser.parse_args()

# %% The fleet: a large cluster, a fast one, and one that others also use; one link is cut for ten minutes.
shared = replace(cluster("shared", "2x{CPU:16}"), others=OthersLoad(0.3, every_s=1800))
fleet = SimulatedFleet(
    (cluster("large", "4x{CPU:16}"), cluster("fast", "2x{CPU:16}@1.6", tags=("arm64",), weight=1.6), shared),
    Settings(resource_threshold=1),
    faults=(PlannedFault(options.hours * 1800, "large", "cut", 600),),
)

# %% The workload: more by day than by night; one in five is wide, one in ten is urgent.
recipe = Synthetic.parse(
    f"load=0.7 over={options.hours}h arrivals=daily run=lognormal:300,1 wide=0.2:8 owners=ann:2,bob priorities=0:9,5:1"
)
workload = recipe.generate(seed=1, fleet=fleet)
print(
    f"{len(workload):,} items; no scheduler could run them in less than {format_duration(lower_bound(fleet, workload))}"
)

# %% The runs to compare.
more = replace(fleet, clusters=(*fleet.clusters, cluster("rented", "2x{CPU:16}")))
runs = compare(
    {
        "as it is": fleet,
        "round robin": fleet.with_settings(Settings(resource_threshold=1, weights={})),
        "threshold 0.7": fleet.with_settings(Settings(resource_threshold=0.7)),
        "one cluster more": more,
    },
    workload,
    seed=1,
)
for name, result in runs.results.items():
    wait, failures = result.wait_s, result.figures["failures"]
    print(
        f"{name:17} makespan {format_duration(result.makespan_s):>9}  wait mean {format_duration(wait['mean']):>9}  "
        f"p95 {format_duration(wait['p95']):>9}  survived the cut: {failures['items_survived']}"
    )

# %% Use per cluster and depth of the queue over time.
if options.plot:
    options.plot.write_text(plot(runs, title="A day on three clusters"), encoding="utf-8")
    print(f"wrote {options.plot}")

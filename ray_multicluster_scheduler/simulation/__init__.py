"""Simulate a fleet in virtual time: the production scheduler machine, without Ray. docs/simulation.md shows its use.

Start with `simulation.py` (`simulate`): it runs a workload (`workloads/`) on a fleet (`simulated_fleet.py`) through
`virtual_fleet/` and returns a `Result` (`report/`). `history.py` records runs, `faulty/` tests the machine
under faults, and `checker/` checks histories. Programs, `cli` and `control_plane.admin_api` import it; it may import
`scheduler`, `control_plane.config` and `common`.
"""

from ray_multicluster_scheduler.simulation.fleet_file import load_fleet
from ray_multicluster_scheduler.simulation.report.plot import plot
from ray_multicluster_scheduler.simulation.report.result import Comparison, Result, Series
from ray_multicluster_scheduler.simulation.simulated_fleet import (
    OthersLoad,
    PlannedFault,
    SimulatedCluster,
    SimulatedFleet,
    cluster,
)
from ray_multicluster_scheduler.simulation.simulation import Simulation, compare, lower_bound, simulate
from ray_multicluster_scheduler.simulation.workloads.synthetic import Synthetic
from ray_multicluster_scheduler.simulation.workloads.trace import read_trace, write_trace
from ray_multicluster_scheduler.simulation.workloads.workload import Item, Workload

__all__ = [
    "Comparison",
    "Item",
    "OthersLoad",
    "PlannedFault",
    "Result",
    "Series",
    "SimulatedCluster",
    "SimulatedFleet",
    "Simulation",
    "Synthetic",
    "Workload",
    "cluster",
    "compare",
    "load_fleet",
    "lower_bound",
    "plot",
    "read_trace",
    "simulate",
    "write_trace",
]

"""simulate() and compare(): the whole thing in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray_multicluster_scheduler.simulation.model import SimulatedFleet
from ray_multicluster_scheduler.simulation.report.result import Comparison, Result
from ray_multicluster_scheduler.simulation.simulation import Observe, Simulation
from ray_multicluster_scheduler.simulation.workloads.workload import Item, Workload


def simulate(
    fleet: SimulatedFleet, workload: Iterable[Item], *, seed: int = 0, observe: Observe | None = None
) -> Result:
    """Run a workload on a fleet in virtual time. Same arguments, same result, to the byte.

    ``seed`` is for what the fleet does by chance: crashes, lost snapshots, other people's load. ``observe`` is given
    every line of the run's history. Raises ConfigurationError.
    """
    items = workload if isinstance(workload, Workload) else Workload(workload)
    return Simulation(fleet, items, seed=seed, observe=observe).run()


def compare(fleets: Mapping[str, SimulatedFleet], workload: Iterable[Item], *, seed: int = 0) -> Comparison:
    """The same workload on several fleets, or on one fleet with several settings. Raises ConfigurationError."""
    items = workload if isinstance(workload, Workload) else Workload(workload)
    return Comparison({label: simulate(fleet, items, seed=seed) for label, fleet in fleets.items()})

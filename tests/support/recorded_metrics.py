"""Record /metrics of a simulated run: the real scheduler and exposition, scraped once a minute of virtual time."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ray_multicluster_scheduler.control_plane.admin_api.metrics.fleet_metrics import add_clusters, add_items
from ray_multicluster_scheduler.scheduler.health.metrics_aggregator import MetricsAggregator
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Persist, RefreshSnapshot, Transition
from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import Exposition
from ray_multicluster_scheduler.simulation.history import HistoryLine, InstructionIssued
from ray_multicluster_scheduler.simulation.simulated_fleet import SimulatedFleet
from ray_multicluster_scheduler.simulation.simulation import Simulation
from ray_multicluster_scheduler.simulation.workloads.workload import Item, Workload

MINUTE_S = 60.0
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


class RecordedMetrics:
    """A run to its end, or for so many minutes. ``series`` has one value for each minute; None if missing."""

    def __init__(self, fleet: SimulatedFleet, items: Iterable[Item], minutes: int) -> None:
        self.minutes = minutes
        self.series: dict[str, list[str | None]] = {}
        self._last: dict[str, Transition] = {}
        self._metrics = MetricsAggregator()
        self._run = Simulation(fleet, Workload(items), observe=self._observe)
        self._run.clock.at(0.0, self._scrape, 0)
        self._run.run()

    def for_promtool(self) -> list[dict[str, str]]:
        """``input_series``, of a service "a"."""
        return [
            {"series": name, "values": " ".join(value or "_" for value in self._padded(values))}
            for name, values in self.series.items()
        ]

    def _padded(self, values: list[str | None]) -> list[str | None]:
        return values + [None] * (self.minutes - len(values))

    def _observe(self, line: HistoryLine) -> None:
        if not isinstance(line, InstructionIssued) or not isinstance(line.instruction, Persist):
            return
        step = line.instruction.transition
        queued_at = self._run.machine.record(step.task_id).queued_at
        self._metrics.record(self._last.get(step.task_id), step, queued_at)
        self._last[step.task_id] = step

    def _scrape(self, minute: int) -> None:
        if minute == self.minutes:
            self._run.clock.stop()
            return
        out = Exposition()
        add_items(out, self._run.machine, self._metrics)
        add_clusters(out, self._run.machine, self._metrics, self._run.clock.now)
        for line in out.text().splitlines():
            if not line.startswith("#"):
                self._note(line, minute)
        for name in self._run.machine.registry.names():  # a scrape refreshes snapshots
            self._run.executor.handlers[RefreshSnapshot](RefreshSnapshot(name))
        self._run.clock.after(MINUTE_S, self._scrape, minute + 1)

    def _note(self, line: str, minute: int) -> None:
        found = _SAMPLE.match(line)
        assert found is not None, line
        labels = ",".join(filter(None, ('instance="a"', found[2])))
        values = self.series.setdefault(f"{found[1]}{{{labels}}}", [])
        values += [None] * (minute - len(values)) + [found[3]]

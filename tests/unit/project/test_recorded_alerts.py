"""The rules of examples/monitoring on series that were recorded: an hour and a half of simulated fleets, scraped by the
code that a service answers with. Each alert fires in these minutes, and in no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.simulation.simulated_fleet import (
    FaultKind,
    OthersLoad,
    PlannedFault,
    SimulatedCluster,
    SimulatedFleet,
    cluster,
)
from ray_multicluster_scheduler.simulation.workloads.workload import Item
from tests.support.docs_blocks import ROOT
from tests.support.promtool import promtool
from tests.support.recorded_metrics import RecordedMetrics

RULES = ROOT / "examples" / "monitoring" / "alerts.yaml"
BY_NAME: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
}
MINUTES = 91
LAST = MINUTES - 1
SETTINGS = Settings(resource_threshold=1.0, start_grace_s=20.0)
TWO = (cluster("mac", "2x{CPU:4}"), cluster("linux", "2x{CPU:8}"))
ONE_CPU = {"CPU": 1.0}


@dataclass(frozen=True)
class Fires:
    """An alert, the cluster that it names, and its first and last minute."""

    alert: str
    first: int
    last: int = LAST
    cluster: str | None = None

    def expected(self) -> dict[str, Any]:
        rule = BY_NAME[self.alert]
        named = {} if self.cluster is None else {"cluster": self.cluster}
        annotations = {
            key: text.replace("{{ $labels.cluster }}", self.cluster or "") for key, text in rule["annotations"].items()
        }
        return {"exp_labels": {"instance": "a", **rule["labels"], **named}, "exp_annotations": annotations}


@dataclass(frozen=True)
class Incident:
    items: Sequence[Item]
    fires: Sequence[Fires] = ()
    clusters: tuple[SimulatedCluster, ...] = TWO
    faults: tuple[PlannedFault, ...] = ()

    def record(self) -> RecordedMetrics:
        return RecordedMetrics(SimulatedFleet(self.clusters, SETTINGS, self.faults), self.items, MINUTES)


def every(seconds: int, run_s: float, *, fails: int = 0) -> list[Item]:
    return [Item(float(at), ONE_CPU, run_s, fails=fails) for at in range(0, MINUTES * 60, seconds)]


def fault(minute: float, what: FaultKind, name: str = "mac", for_s: float | None = None) -> PlannedFault:
    return PlannedFault(minute * 60, name, what, for_s)


OTHERS_TAKE_ALL = replace(
    cluster("mac", "2x{CPU:8}", snapshot_delay_s=300.0, snapshot_every_s=600.0),
    others=OthersLoad(steps=((1200.0, 1.0),)),
)
"""From minute 20 on, since its last report is five minutes old."""
STORIES = {
    "work comes and goes": Incident(every(5, 20.0)),
    "idle for an hour": Incident([Item(0.0, ONE_CPU, 30.0), Item(LAST * 60.0, ONE_CPU, 1.0)]),
    "all is taken by long work": Incident(
        [Item(float(at), {"CPU": 4.0}, 7200.0) for at in range(20)], [Fires("RmcsQueueStandsStill", 66)]
    ),
    "a cluster dies": Incident(
        every(5, 120.0),
        [
            Fires("RmcsWorkLost", 12, 21, "mac"),
            Fires("RmcsBreakerOpen", 13, cluster="mac"),
            Fires("RmcsClusterDown", 16, cluster="mac"),
        ],
        faults=(fault(10, "dies"),),
    ),
    "a cluster is away for a quarter of an hour": Incident(
        every(5, 120.0),
        [
            Fires("RmcsWorkLost", 12, 21, "mac"),
            Fires("RmcsBreakerOpen", 14, 26, "mac"),
            Fires("RmcsClusterDown", 16, 26, "mac"),
        ],
        faults=(fault(10.5, "cut", for_s=900.0),),
    ),
    "a line that is cut for 20 s, again and again": Incident(
        every(5, 20.0), faults=tuple(fault(minute, "cut", for_s=20.0) for minute in range(5, 90, 10))
    ),
    "code that raises": Incident(every(20, 20.0, fails=9), [Fires("RmcsManyFailures", 8)]),
    "dispatched items do not start": Incident(
        every(30, 20.0),
        [Fires("RmcsClusterRefuses", 32, cluster="mac")],
        (OTHERS_TAKE_ALL, cluster("linux", "{CPU:1}")),
    ),
    "all clusters die": Incident(
        every(5, 20.0),
        [
            Fires("RmcsWorkLost", 12, 21, "mac"),
            Fires("RmcsWorkLost", 12, 21, "linux"),
            Fires("RmcsBreakerOpen", 13, cluster="mac"),
            Fires("RmcsBreakerOpen", 13, cluster="linux"),
            Fires("RmcsClusterDown", 16, cluster="mac"),
            Fires("RmcsClusterDown", 16, cluster="linux"),
            Fires("RmcsQueueStuck", 31),
            Fires("RmcsQueueStandsStill", 76),
        ],
        faults=(fault(10, "dies"), fault(10, "dies", "linux")),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_alerts_fire_in_exactly_these_minutes(name: str, tmp_path: Path) -> None:
    explanation = STORIES[name]
    alert_tests = [
        {
            "eval_time": f"{minute}m",
            "alertname": alert,
            "exp_alerts": [
                one.expected() for one in explanation.fires if one.alert == alert and one.first <= minute <= one.last
            ],
        }
        for alert in BY_NAME
        for minute in range(MINUTES)
    ]
    test = {"interval": "1m", "input_series": explanation.record().for_promtool(), "alert_rule_test": alert_tests}
    file = tmp_path / "recorded.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_the_recording_is_complete() -> None:
    """The recording itself: values of a run that is known."""
    series = STORIES["code that raises"].record().series
    assert series['rmcs_tasks_total{instance="a",state="FAILED"}'][-1] == "269.0"
    assert series['rmcs_tasks_total{instance="a",state="SUCCEEDED"}'][-1] == "0.0"
    began = [
        series[f'rmcs_attempts_total{{instance="a",cluster="{one}",outcome="began"}}'][-1] for one in ("mac", "linux")
    ]
    assert sum(float(one or 0) for one in began) == 270
    assert all(len(values) == MINUTES for values in series.values())

"""Figures for Prometheus: named as promised, counted from what happens, and bounded."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.admin_api.metrics.load_series import is_up
from ray_multicluster_scheduler.scheduler.health.metrics_aggregator import (
    MAX_REASONS,
    OTHER,
    Histogram,
    MetricsAggregator,
)
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.events import SnapshotFailed
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Transition
from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import Exposition
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import running

pytestmark = pytest.mark.usefixtures("leak_check")
SAMPLE = re.compile(r'^[a-z_]+(\{([a-z]+="[^"]*",?)+\})? (-?[0-9.e+-]+|\+Inf)$')
PROMISED = {
    "rmcs_tasks_total",
    "rmcs_schedule_success_ratio",
    "rmcs_queue_depth",
    "rmcs_queue_wait_seconds",
    "rmcs_decision_seconds",
    "rmcs_dispatch_seconds",
    "rmcs_cluster_utilization",
    "rmcs_cluster_up",
    "rmcs_breaker_state",
    "rmcs_retries_total",
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", submission_interval_s=0) as service:
        yield service


def figures(service: HttpService) -> dict[str, float]:
    text = service.get("/metrics").decode()
    assert text.endswith("\n")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in lines), lines
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_transitions_are_counted(service: HttpService) -> None:
    item = service.fill()
    output = figures(service)
    assert output['rmcs_queue_depth{queue="task"}'] == 1
    assert output['rmcs_tasks_total{state="RUNNING"}'] == 1
    assert output['rmcs_cluster_utilization{cluster="mac",resource="CPU"}'] == 1
    assert (output['rmcs_cluster_up{cluster="mac"}'], output['rmcs_breaker_state{cluster="mac"}']) == (1, 0)
    assert output['rmcs_schedule_success_ratio{cluster="mac"}'] == 1
    assert (output["rmcs_queue_wait_seconds_count"], output["rmcs_dispatch_seconds_count"]) == (1, 1)
    assert output["rmcs_decision_seconds_count"] > 3
    assert output['rmcs_queue_wait_seconds_bucket{le="+Inf"}'] == 1
    service.plane.finish(item)
    assert figures(service)['rmcs_tasks_total{state="SUCCEEDED"}'] == 1


def test_the_store_is_watched(service: HttpService) -> None:
    before = figures(service)
    assert before["rmcs_store_up"] == 1
    assert before["rmcs_store_free_bytes"] > 0
    assert before["rmcs_store_blob_bytes"] < before["rmcs_store_blob_quota_bytes"]
    service.submit("t")
    assert figures(service)["rmcs_store_commit_seconds_count"] > before["rmcs_store_commit_seconds_count"]


def test_all_names_are_there_once_there_is_something_to_say(service: HttpService) -> None:
    service.submit("t")
    item = service.plane.runtime.item("t")
    assert item is not None
    running(item)
    service.plane.runtime.call_and_wait(lambda: service.plane.runtime.metrics.retries.update(["CRASHED"]))
    text = service.get("/metrics").decode()
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) >= PROMISED


def test_reasons_and_clusters_are_bounded(service: HttpService) -> None:
    metrics = MetricsAggregator()
    for number in range(3 * MAX_REASONS):
        metrics.record(None, Transition("t", 1, TaskState.RETRYING, 1, 0.0, f"CODE_{number}", ""))
    assert len(metrics.retries) == MAX_REASONS + 1
    assert metrics.retries[OTHER] == 2 * MAX_REASONS + len(codes.FAILED)
    gone = service.plane.runtime.metrics
    service.plane.runtime.call_and_wait(lambda: gone.started.update(["mars"]))
    assert 'rmcs_schedule_success_ratio{cluster="mars"}' not in figures(service)
    assert "mars" not in gone.started


def test_what_was_sent_and_did_not_begin_counts_against_its_cluster() -> None:
    metrics = MetricsAggregator()
    sent = Transition("t", 3, TaskState.DISPATCHING, 1, 5.0, "", "", "mac")
    metrics.record(sent, Transition("t", 4, TaskState.RUNNING, 1, 7.0, "", "", "mac"))
    metrics.record(sent, Transition("t", 4, TaskState.RETRYING, 1, 7.0, "REFUSED", "", None))
    metrics.record(sent, Transition("t", 4, TaskState.QUEUED, 1, 7.0, codes.TAKEN_BACK, "", None))
    metrics.record(sent, sent)
    assert metrics.success_ratio("mac") == 0.5
    assert metrics.success_ratio("linux") is None
    assert (metrics.dispatch.count, metrics.dispatch.sum) == (1, 2.0)


@pytest.mark.parametrize(
    ("state", "code", "began", "did_not", "lost"),
    [
        (TaskState.QUEUED, codes.NOT_STARTED, 0, 1, 0),
        (TaskState.QUEUED, codes.TAKEN_BACK, 0, 0, 0),
        (TaskState.LOST, codes.CONTACT_LOST, 0, 1, 1),
        (TaskState.RETRYING, "CLUSTER_LOST", 0, 1, 1),
        (TaskState.FAILED, codes.DECLARED_DEAD, 0, 1, 1),
        (TaskState.FAILED, "RUNTIME_ENV_FAILED", 0, 1, 0),
        (TaskState.FAILED, "USER_ERROR", 1, 0, 0),
        (TaskState.FAILED, "JOB_FAILED", 1, 0, 0),
        (TaskState.FAILED, "PAYLOAD_LOST", 0, 0, 0),
        (TaskState.CANCELLED, codes.CANCELLED, 0, 0, 0),
    ],
)
def test_start_counts_by_outcome(state: TaskState, code: str, began: int, did_not: int, lost: int) -> None:
    """Its cluster is blamed for what it did not begin, not for what the user's code did."""
    metrics = MetricsAggregator()
    sent = Transition("t", 3, TaskState.DISPATCHING, 1, 5.0, "", "", "mac")
    metrics.record(sent, Transition("t", 4, state, 1, 7.0, code, "", None))
    assert (metrics.started["mac"], metrics.not_started["mac"], metrics.lost["mac"]) == (began, did_not, lost)


def test_one_that_is_lost_is_counted_once() -> None:
    metrics = MetricsAggregator()
    steps = [
        Transition("t", 3, TaskState.RUNNING, 1, 5.0, "", "", "mac"),
        Transition("t", 4, TaskState.LOST, 1, 6.0, codes.CONTACT_LOST, "", "mac"),
        Transition("t", 5, TaskState.RETRYING, 1, 9.0, "CLUSTER_LOST", "", "mac"),
    ]
    for before, now in pairwise(steps):
        metrics.record(before, now)
    assert metrics.lost["mac"] == 1
    metrics.forget("mac")
    assert not metrics.lost


def test_another_reason_is_no_step_and_begins_no_wait_anew(service: HttpService) -> None:
    first = service.fill()
    until(lambda: service.get("/api/v1/items/u")["code"] == "NO_CAPACITY")
    output = figures(service)
    began = time.monotonic()
    for order, code in (("cordon", "CORDONED"), ("uncordon", "NO_CAPACITY")):
        service.post(f"/api/v1/clusters/mac/{order}")
        until(lambda code=code: service.get("/api/v1/items/u")["code"] == code)  # type: ignore[misc]
    assert figures(service)['rmcs_tasks_total{state="QUEUED"}'] == output['rmcs_tasks_total{state="QUEUED"}']
    waited = time.monotonic() - began
    service.plane.finish(first)
    until(lambda: figures(service)["rmcs_queue_wait_seconds_count"] == 2)
    assert figures(service)["rmcs_queue_wait_seconds_sum"] >= waited


def test_an_idle_fleet_is_up_and_a_scrape_checks_it(tmp_path: Path) -> None:
    up = 'rmcs_cluster_up{cluster="mac"}'
    with HttpService(tmp_path / "state", snapshot_interval_s=0.01, health_check_interval_s=0.3) as service:
        runtime = service.plane.runtime
        assert is_up(runtime.call_and_wait(lambda: runtime.machine.view("mac", runtime.clock.now()))) is None, (
            "nobody has asked"
        )
        until(lambda: figures(service).get(up) == 1)
        state = runtime.machine.registry.state("mac")
        received = state.snapshot_received_at
        assert received is not None
        time.sleep(0.1)
        view = runtime.call_and_wait(lambda: runtime.machine.view("mac", runtime.clock.now()))
        assert view.problem is not None
        assert view.problem.code == "STALE_SNAPSHOT"
        assert figures(service)[up] == 1, "nothing is known to be wrong with it"
        until(lambda: bool(figures(service)) and (state.snapshot_received_at or 0) > received)
        service.plane.refresh = lambda cluster, **_: runtime._loop.create_future()  # type: ignore[method-assign]
        service.plane.post(SnapshotFailed("mac", "CLUSTER_UNREACHABLE", "connection refused"))
        until(lambda: figures(service)[up] == 0)
        assert 'rmcs_cluster_utilization{cluster="mac",resource="CPU"}' not in figures(service), "nobody knows it"


def test_the_text_is_what_prometheus_reads() -> None:
    out = Exposition()
    out.counter("a_total", "line\nbreak", [({"x": 'q"\\\n\udce9'}, 2)])
    out.gauge("share", "without labels", [({}, 0.5)])
    out.gauge("nothing", "is left out", [])
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 2.0, 9.0):
        histogram.add(value)
    out.histogram("h", "seconds", histogram)
    assert out.text().splitlines() == [
        r"# HELP a_total line\nbreak",
        "# TYPE a_total counter",
        r'a_total{x="q\"\\\n?"} 2.0',
        "# HELP share without labels",
        "# TYPE share gauge",
        "share 0.5",
        "# HELP h seconds",
        "# TYPE h histogram",
        'h_bucket{le="1.0"} 2.0',
        'h_bucket{le="2.5"} 3.0',
        'h_bucket{le="+Inf"} 4.0',
        "h_count 4.0",
        "h_sum 12.5",
    ]


def test_only_a_scrape_loads_the_library() -> None:
    program = (
        "import sys; import ray_multicluster_scheduler.main; "
        "from ray_multicluster_scheduler.control_plane.admin_api.routes import service; "
        "sys.exit('prometheus_client' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

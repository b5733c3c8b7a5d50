"""add_serving(): the metrics of a serving scheduler. Labels are bounded: registered instances and their models."""

from __future__ import annotations

from collections import Counter

from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import Exposition, Samples
from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler

NO_INSTANCE = "(no instance)"
"""Stands for all models that are requested and have no instance: clients choose those names."""


def add_serving(out: Exposition, scheduler: SwarmPilotScheduler) -> None:
    """Add all metrics; without instances and requests there are none."""
    rows, found = scheduler.queue_info(), scheduler.statistics()
    places = {row.ti_uuid: row.address for row in rows}
    out.counter(
        "rmcs_serving_requests_total",
        "Ended requests: completed, failed, or abandoned (the client left, or the instance refused it).",
        [
            ({"model": model, "outcome": outcome}, count)
            for (model, outcome), count in scheduler.task_tracker.outcomes.items()
        ],
    )
    waiting: Counter[str] = Counter()
    for one in scheduler.models():
        waiting[one.model_name if one.instances else NO_INSTANCE] += one.waiting
    out.gauge("rmcs_serving_waiting", "Waiting requests.", _by_model(waiting))
    healthy: Counter[str] = Counter()
    for row in rows:
        healthy[row.model_name] += row.healthy
    out.gauge("rmcs_serving_healthy_instances", "Instances that get requests.", _by_model(healthy))
    labels = [({"model": row.model_name, "address": row.address}, row) for row in rows]
    out.gauge("rmcs_serving_instance_up", "1 if the instance gets requests.", [(at, row.healthy) for at, row in labels])
    out.gauge(
        "rmcs_serving_charged_seconds",
        "Expected remaining time of what waits and runs at the instance.",
        [(at, row.waiting_time_expect / 1000) for at, row in labels],
    )
    predictions = [
        ({"model": one["model"], "address": places[one["instance"]]}, one)
        for one in found["predictions"]
        if one["instance"] in places
    ]
    out.counter(
        "rmcs_serving_predictions_total", "Predicted requests that ended.", [(a, p["count"]) for a, p in predictions]
    )
    out.gauge(
        "rmcs_serving_prediction_error",
        "Mean of |actual - predicted| / actual over recent requests.",
        [(at, one["relative_error"]) for at, one in predictions],
    )
    out.gauge(
        "rmcs_serving_p90_coverage",
        "Share of recent requests that ended within their predicted p90.",
        [(at, one["within_p90"]) for at, one in predictions],
    )
    out.counter(
        "rmcs_serving_overhead_seconds_total",
        "Time of completed requests besides their execution: waiting, forwarding, answering.",
        [({"model": model}, ms / 1000) for model, ms in list(scheduler.task_tracker.overhead_ms.items())],
    )


def _by_model(values: Counter[str]) -> Samples:
    return [({"model": model}, value) for model, value in values.items()]

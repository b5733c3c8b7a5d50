"""All that is known of one cluster."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import cluster_shown
from ray_multicluster_scheduler.control_plane.runtime import explanation, fleet_control
from ray_multicluster_scheduler.control_plane.runtime.event_publisher import shared_with
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime


def cluster_details(runtime: ServiceRuntime, name: str) -> dict[str, Any]:
    """On the loop. Raises ConfigurationError."""
    now = runtime.clock.now()
    state, view = runtime.machine.registry.state(name), runtime.machine.view(name, now)
    row = next(row for row in explanation.cluster_rows(runtime) if row["name"] == name)
    concerns = (("everything", view.trouble), ("tasks and actors", view.link_trouble), ("jobs", view.job_trouble))
    return {
        **row,
        "drained": fleet_control.is_drained(runtime, name),
        "config": cluster_shown(runtime.config.cluster(name)),
        "breaker": {
            "state": str(state.breaker.state(now)),
            "failures_in_a_row": state.breaker.failures_in_a_row,
            "half_open_at": state.breaker.half_open_at,
        },
        "troubles": [
            {"concerns": what, "code": one.code, "sentence": one.sentence, "since": one.at}
            for what, one in concerns
            if one is not None
        ],
        "notes": [note for note in [shared_with(row["other_control_planes"])] if note],
        "link": view.link,
        "paused": view.paused,
        "in_flight": view.in_flight,
        "ahead": view.ahead,
        "running_jobs": view.running_jobs,
        "ready_actors": view.ready_actors,
        "kept_for": view.kept_for,
        "next_submission_at": view.next_submission_at,
        "heard_at": state.heard_at,
    }

"""The figures of a service, as Prometheus reads them. Labels are bounded: clusters, and codes of our own."""

from __future__ import annotations

from collections.abc import Iterator

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.control_plane.admin_api.load_series import share_taken
from ray_multicluster_scheduler.control_plane.admin_api.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import Room
from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import Exposition, Labels

_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_RESOURCES = ("CPU", "GPU", "memory")


def metrics_text(runtime: ServiceRuntime, room: Room) -> str:
    """On the loop; nobody is asked."""
    machine, metrics, now = runtime.machine, runtime.metrics, runtime.clock.now()
    names = machine.registry.names()
    for gone in {*metrics.started, *metrics.not_started}.difference(names):
        metrics.forget(gone)
    views = {name: machine.view(name, now) for name in names}
    depths = {"task": 0, "job": 0}
    for lane, waiting in machine.queue_depths().items():
        depths[lane.queue] = depths.get(lane.queue, 0) + waiting
    out = Exposition()
    out.family("rmcs_build_info", "gauge", "Which version this is.", [({"version": __version__}, 1)])
    out.family(
        "rmcs_tasks_total",
        "counter",
        "Steps of items into each state, since the service was started.",
        [({"state": state}, count) for state, count in metrics.entered.items()],
    )
    out.family(
        "rmcs_retries_total",
        "counter",
        "Attempts that are followed by another, by the reason.",
        [({"reason": code}, count) for code, count in sorted(metrics.retries.items())],
    )
    out.family("rmcs_queue_depth", "gauge", "Items that wait.", [({"queue": one}, n) for one, n in depths.items()])
    out.histogram("rmcs_queue_wait_seconds", "From when an item was queued until it was sent.", metrics.queue_wait)
    out.histogram("rmcs_dispatch_seconds", "From when an item was sent until it ran.", metrics.dispatch)
    out.histogram("rmcs_decision_seconds", "One event, and all that was decided by it.", metrics.decision)
    out.family(
        "rmcs_schedule_success_ratio",
        "gauge",
        "Of what was sent to a cluster, which part began there.",
        [({"cluster": one}, ratio) for one in names if (ratio := metrics.success_ratio(one)) is not None],
    )
    ups = [({"cluster": name}, float(view.trouble is None)) for name, view in views.items()]
    out.family("rmcs_cluster_up", "gauge", "1 if it takes work, as far as is known.", ups)
    items = [({"cluster": name}, float(view.in_flight + view.ahead)) for name, view in views.items()]
    out.family("rmcs_cluster_items", "gauge", "Items that are there.", items)
    breakers = [({"cluster": one}, float(_BREAKER[machine.registry.state(one).breaker.state(now)])) for one in names]
    out.family("rmcs_breaker_state", "gauge", "0 closed, 1 half open, 2 open.", breakers)

    def used() -> Iterator[tuple[Labels, float]]:
        for name, view in views.items():
            for what in _RESOURCES:
                share = share_taken(view, what)
                if share is not None:
                    yield {"cluster": name, "resource": what}, share

    out.family("rmcs_cluster_utilization", "gauge", "Which part of a resource is taken.", used())
    out.histogram("rmcs_store_commit_seconds", "To make one group of changes durable.", metrics.commit)
    trouble = runtime.store.trouble
    out.family("rmcs_store_up", "gauge", "1 if what is accepted can be written.", [({}, float(trouble is None))])
    out.family("rmcs_store_free_bytes", "gauge", "Free where the record is kept.", [({}, room.free_bytes)])
    out.family("rmcs_store_blob_bytes", "gauge", "Payloads, results and output that are kept.", [({}, room.blob_bytes)])
    quota = runtime.config.settings.payload_quota_bytes
    out.family("rmcs_store_blob_quota_bytes", "gauge", "And how much they may take.", [({}, quota)])
    if runtime.traces is not None:
        counts = [({"outcome": "sent"}, runtime.traces.sent), ({"outcome": "dropped"}, runtime.traces.dropped)]
        out.family("rmcs_traces_total", "counter", "Items that a collector was, or could not be, told of.", counts)
    return out.text()

"""The figures of a service, as Prometheus reads them. Labels are bounded: clusters, and codes of our own."""

from __future__ import annotations

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.control_plane.admin_api.metrics.fleet_metrics import add_clusters, add_items
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import StorageUsage
from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import Exposition


def metrics_text(runtime: ServiceRuntime, room: StorageUsage) -> str:
    """On the loop; nobody is asked."""
    out = Exposition()
    out.gauge("rmcs_build_info", "Which version this is.", [({"version": __version__}, 1)])
    add_items(out, runtime.machine, runtime.metrics)
    add_clusters(out, runtime.machine, runtime.metrics, runtime.clock.now())
    _add_store(out, runtime, room)
    sender = runtime.trace_sender
    if sender is not None:
        counts = [({"outcome": "sent"}, sender.sent), ({"outcome": "dropped"}, sender.dropped)]
        out.counter("rmcs_traces_total", "Items that a collector was, or could not be, told of.", counts)
    return out.text()


def _add_store(out: Exposition, runtime: ServiceRuntime, room: StorageUsage) -> None:
    out.histogram("rmcs_store_commit_seconds", "To make one group of changes durable.", runtime.metrics.commit)
    trouble = runtime.store.write_problem
    out.gauge("rmcs_store_up", "1 if what is accepted can be written.", [({}, float(trouble is None))])
    out.gauge("rmcs_store_free_bytes", "Free where the record is kept.", [({}, room.free_bytes)])
    out.gauge("rmcs_store_blob_bytes", "Payloads, results and output that are kept.", [({}, room.blob_bytes)])
    quota = runtime.config.settings.payload_quota_bytes
    out.gauge("rmcs_store_blob_quota_bytes", "And how much they may take.", [({}, quota)])

"""Prometheus metrics of a service, and of a simulated run. Labels are bounded: cluster names and codes of our own."""

from __future__ import annotations

from collections.abc import Mapping

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.control_plane.admin_api.metrics.load_series import is_up, share_taken, waiting_by_queue
from ray_multicluster_scheduler.control_plane.runtime.pools import pool_rows
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.control_plane.store import StorageUsage
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.health.metrics_aggregator import MetricsAggregator
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.monitor.prometheus_client import Exposition, Samples
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import REASONS
from ray_multicluster_scheduler.serving import SwarmPilotScheduler
from ray_multicluster_scheduler.serving.metrics import add_serving

_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_RESOURCES = ("CPU", "GPU", "memory")


def metrics_text(runtime: ServiceRuntime, room: StorageUsage, serving: SwarmPilotScheduler) -> str:
    """All metrics in text form. On the loop; no cluster is contacted."""
    out = Exposition()
    out.gauge("rmcs_build_info", "The version of the service, as a label.", [({"version": __version__}, 1)])
    add_items(out, runtime.machine, runtime.metrics)
    add_clusters(out, runtime.machine, runtime.metrics, runtime.clock.now())
    _add_pools(out, runtime.machine)
    _add_preemptions(out, runtime.machine, runtime.clock.now())
    _add_store(out, runtime, room)
    add_serving(out, serving)
    sender = runtime.trace_sender
    if sender is not None:
        counts = [({"outcome": "sent"}, sender.sent), ({"outcome": "dropped"}, sender.dropped)]
        out.counter("rmcs_traces_total", "Traces of ended items that were sent to the collector, or dropped.", counts)
    return out.text()


def _add_store(out: Exposition, runtime: ServiceRuntime, room: StorageUsage) -> None:
    out.histogram("rmcs_store_commit_seconds", "Duration of a commit of the store.", runtime.metrics.commit)
    problem = runtime.store.write_problem
    out.gauge("rmcs_store_up", "1 if the store can write.", [({}, float(problem is None))])
    out.gauge("rmcs_store_free_bytes", "Free bytes on the disk of the store.", [({}, room.free_bytes)])
    out.gauge("rmcs_store_blob_bytes", "Bytes of stored payloads, results and output.", [({}, room.blob_bytes)])
    quota = runtime.config.settings.payload_quota_bytes
    out.gauge("rmcs_store_blob_quota_bytes", "The quota of stored payloads, results and output.", [({}, quota)])


def add_items(out: Exposition, machine: SchedulerMachine, metrics: MetricsAggregator) -> None:
    """Counts of states and retries, and durations."""
    out.counter(
        "rmcs_tasks_total",
        "Transitions of items into each state since the start of the service.",
        [({"state": state}, count) for state, count in metrics.entered.items()],
    )
    out.counter(
        "rmcs_retries_total",
        "Attempts that were retried, by reason.",
        [({"reason": code}, count) for code, count in sorted(metrics.retries.items())],
    )
    depths = [({"queue": one}, waiting) for one, waiting in waiting_by_queue(machine).items()]
    out.gauge("rmcs_queue_depth", "Waiting items.", depths)
    out.histogram("rmcs_queue_wait_seconds", "Time from queueing to dispatch of an item.", metrics.queue_wait)
    out.histogram("rmcs_dispatch_seconds", "Time from dispatch to start of an item.", metrics.dispatch)
    out.histogram("rmcs_decision_seconds", "Duration of the handling of one event by the scheduler.", metrics.decision)


def add_clusters(out: Exposition, machine: SchedulerMachine, metrics: MetricsAggregator, now: float) -> None:
    """The state of each cluster. Counts of removed clusters are dropped."""
    names = machine.registry.names()
    for gone in {*metrics.started, *metrics.not_started, *metrics.lost}.difference(names):
        metrics.forget(gone)
    views = {name: machine.view(name, now) for name in names}
    out.counter(
        "rmcs_attempts_total",
        "Attempts dispatched to a cluster, by whether they began there.",
        _attempts(metrics, names),
    )
    lost = [({"cluster": one}, metrics.lost[one]) for one in names]
    out.counter("rmcs_lost_total", "Attempts on a cluster when it was lost.", lost)
    out.gauge(
        "rmcs_schedule_success_ratio",
        "Share of the attempts dispatched to a cluster since the start of the service that began there.",
        [({"cluster": one}, ratio) for one in names if (ratio := metrics.success_ratio(one)) is not None],
    )
    ups = [({"cluster": name}, float(up)) for name, view in views.items() if (up := is_up(view)) is not None]
    out.gauge("rmcs_cluster_up", "1 if the cluster accepts work, as far as is known.", ups)
    items = [({"cluster": name}, float(view.in_flight + view.prefetched)) for name, view in views.items()]
    out.gauge("rmcs_cluster_items", "Items on the cluster, including prefetched ones.", items)
    breakers = [({"cluster": one}, float(_BREAKER[machine.clusters.health(one, now).breaker])) for one in names]
    out.gauge("rmcs_breaker_state", "Circuit breaker: 0 closed, 1 half open, 2 open.", breakers)
    out.gauge("rmcs_cluster_utilization", "Used share of a resource.", _taken(views))


def _add_pools(out: Exposition, machine: SchedulerMachine) -> None:
    rows = pool_rows(machine)
    uses = [
        ({"pool": name, "cluster": use["cluster"] or "", "resource": use["resource"]}, use)
        for name, row in rows.items()
        for use in row["use"]
    ]
    quota = [(labels, use["quota"]) for labels, use in uses]
    out.gauge("rmcs_pool_quota", "The quota of a pool.", quota)
    used = [(labels, use["used"] + use["reserved"]) for labels, use in uses]
    out.gauge("rmcs_pool_used", "What the items of a pool use, or have reserved.", used)
    borrowed = [(labels, use["borrowed"]) for labels, use in uses]
    out.gauge("rmcs_pool_borrowed", "What a pool uses beyond its quota.", borrowed)
    waiting = [({"pool": name}, row["waiting"]) for name, row in rows.items()]
    out.gauge("rmcs_pool_waiting", "Unfinished items of a pool that are on no cluster.", waiting)


def _add_preemptions(out: Exposition, machine: SchedulerMachine, now: float) -> None:
    """Pool ``""``: items without a pool. Counts begin at 0, since Prometheus sees no increase from a missing value."""
    counts, pools = machine.preemption_counts(now), ("", *machine.pools.ledger.pools)
    victims = [
        ({"pool": pool, "reason": reason}, counts.victims.get((pool, reason), 0))
        for pool in pools
        for reason in sorted(REASONS)
    ]
    out.counter("rmcs_preemptions_total", "Items of a pool that were preempted, by reason.", victims)
    lost = [({"pool": pool}, counts.lost_s.get(pool, 0.0)) for pool in pools]
    out.counter("rmcs_preemption_lost_seconds_total", "Work of preempted items since they last saved.", lost)
    longest = "Time since the preemption of the item that has been leaving for the longest time; 0 if none is leaving."
    out.gauge("rmcs_preemption_longest_seconds", longest, [({}, counts.longest_s)])


def _attempts(metrics: MetricsAggregator, names: tuple[str, ...]) -> Samples:
    for name in names:
        yield {"cluster": name, "outcome": "began"}, metrics.started[name]
        yield {"cluster": name, "outcome": "did_not_begin"}, metrics.not_started[name]


def _taken(views: Mapping[str, ClusterView]) -> Samples:
    for name, view in views.items():
        for what in _RESOURCES:
            share = share_taken(view, what)
            if share is not None:
                yield {"cluster": name, "resource": what}, share

"""The built-in filters, one file each; ``built_in_filters`` lists them in evaluation order. Only ``scheduler/policy``
imports them. Start with ``cordon.py``: to add a filter, write a class with ``check`` like that one, and list it."""

from __future__ import annotations

from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.policy.filters.allowed import AllowedFilter
from ray_multicluster_scheduler.scheduler.policy.filters.capacity import CapacityFilter
from ray_multicluster_scheduler.scheduler.policy.filters.carrier import CarrierFilter
from ray_multicluster_scheduler.scheduler.policy.filters.cordon import CordonFilter
from ray_multicluster_scheduler.scheduler.policy.filters.dashboard import DashboardFilter
from ray_multicluster_scheduler.scheduler.policy.filters.health import HealthFilter
from ray_multicluster_scheduler.scheduler.policy.filters.in_flight import InFlightFilter
from ray_multicluster_scheduler.scheduler.policy.filters.link import LinkFilter
from ray_multicluster_scheduler.scheduler.policy.filters.paused import PausedFilter
from ray_multicluster_scheduler.scheduler.policy.filters.pool import PoolFilter
from ray_multicluster_scheduler.scheduler.policy.filters.preferred_only import PreferredOnlyFilter
from ray_multicluster_scheduler.scheduler.policy.filters.python_version import PythonVersionFilter
from ray_multicluster_scheduler.scheduler.policy.filters.required_tags import RequiredTagsFilter
from ray_multicluster_scheduler.scheduler.policy.filters.running_jobs import RunningJobsFilter
from ray_multicluster_scheduler.scheduler.policy.filters.serial import SerialFilter
from ray_multicluster_scheduler.scheduler.policy.filters.size import SizeFilter
from ray_multicluster_scheduler.scheduler.policy.filters.submission_interval import SubmissionIntervalFilter
from ray_multicluster_scheduler.scheduler.policy.filters.threshold import ThresholdFilter
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.queue.backpressure_controller import BackpressureController

__all__ = [
    "CONNECTION_FILTERS",
    "CONSTRAINT_FILTERS",
    "SubmissionIntervalFilter",
    "ThresholdFilter",
    "built_in_filters",
]

CONSTRAINT_FILTERS = (PreferredOnlyFilter, AllowedFilter, RequiredTagsFilter)
"""Filters whose verdict depends only on the descriptions of the item and the cluster."""

CONNECTION_FILTERS = (CarrierFilter, HealthFilter, LinkFilter, PythonVersionFilter)
"""Filters that tell whether a cluster can be reached."""


def built_in_filters(settings: Settings, local_python: str, quota: QuotaLedger) -> tuple[Filter, ...]:
    """All of them; permanent conditions come first, so that the first rejection is the most informative one."""
    return (
        PreferredOnlyFilter(),
        AllowedFilter(),
        RequiredTagsFilter(),
        CarrierFilter(),
        HealthFilter(),
        LinkFilter(),
        DashboardFilter(),
        PythonVersionFilter(local_python),
        SizeFilter(),
        PoolFilter(quota),
        CordonFilter(),
        PausedFilter(),
        CapacityFilter(),
        ThresholdFilter(BackpressureController(settings)),
        SerialFilter(settings),
        SubmissionIntervalFilter(settings),
        RunningJobsFilter(),
        InFlightFilter(),
    )

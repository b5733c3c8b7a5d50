"""Pydantic models of ``settings:`` in clusters.yaml: frozen, unknown keys refused."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from ray_multicluster_scheduler.common.model.checks import plain_number
from ray_multicluster_scheduler.common.model.item_fields import MAX_PRIORITY
from ray_multicluster_scheduler.common.redaction import mask_userinfo

Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]
MaybeSeconds = Annotated[float, Field(ge=0)]
Milliseconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
MAX_OF_AN_OWNER = 10**9
"""The largest limit of an owner; use none instead of more."""
LimitedCount = Annotated[int, Field(ge=0, le=MAX_OF_AN_OWNER)]
Weight = Annotated[float, Field(ge=1e-6, le=1e6)]
LimitedAmount = Annotated[float, Field(ge=0, le=MAX_OF_AN_OWNER, allow_inf_nan=False)]
LimitedPriority = Annotated[float, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, allow_inf_nan=False)]

LEASE_MARGIN_S = 10.0
"""Minimum time between the end of the lease and the loss of a cluster, because clocks and queues differ."""


def _attribute_path(value: str) -> str:
    module, _, attribute = value.partition(":")
    if all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        return value
    raise ValueError(f"expected package.module:attribute, got {value!r}")


def _origin(value: str) -> str:
    if re.fullmatch(r"https?://(\[[0-9a-fA-F:]+\]|[\w.-]+)(:\d+)?/?", value):
        return value.rstrip("/")
    raise ValueError(f"expected the origin of a page, such as https://fleet.example:3000, got {value!r}")


def _collector(value: str) -> str:
    if re.fullmatch(r"https?://(\[[0-9a-fA-F:]+\]|[\w.-]+)(:\d+)?(/[\w./-]*)?", value):
        return value.rstrip("/")
    raise ValueError(
        "expected the address of a collector for OTLP over HTTP, such as http://127.0.0.1:4318, "
        f"got {mask_userinfo(value)!r} (keys belong into the environment variable OTEL_EXPORTER_OTLP_HEADERS)"
    )


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        raise ValueError(f"expected a network such as 10.1.0.0/16, got {value!r}") from None


AttributePath = Annotated[str, AfterValidator(_attribute_path)]
Origin = Annotated[str, AfterValidator(_origin)]
CollectorAddress = Annotated[str, AfterValidator(_collector)]
Network = Annotated[str, AfterValidator(_network)]


class Strict(BaseModel):
    """Base of all configuration: no unknown keys, no changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Threshold(Strict):
    """Above this share in use, a cluster takes no new top-level work; per resource."""

    cpu: Fraction = 0.7
    gpu: Fraction = 0.7
    memory: Fraction = 0.7


class RetryBackoff(Strict):
    """Wait ``base_s · factor^n``, at most ``max_s``, give or take ``jitter``."""

    base_s: MaybeSeconds = 1.0
    factor: Annotated[float, Field(ge=1)] = 2.0
    max_s: MaybeSeconds = 60.0
    jitter: Fraction = 0.2


class OwnerLimits(Strict):
    """The limits of one owner; None: no limit. The REST schemas are generated from these fields."""

    weight: Weight = Field(default=1.0, description="Its share at equal priority.")
    max_queued: LimitedCount | None = Field(default=None, description="So many may wait; more are refused.")
    max_running: LimitedCount | None = Field(default=None, description="So many may be on clusters.")
    max_gpus: LimitedAmount | None = Field(default=None, description="So many it may hold on clusters.")
    max_priority: LimitedPriority | None = Field(default=None, description="The highest priority that it may request.")

    @field_validator("max_priority", mode="before")
    @classmethod
    def _no_flag(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(f"expected a number, got {str(value).lower()}")
        return value

    @field_validator("max_priority")
    @classmethod
    def _plain_number(cls, value: float | None) -> float | None:
        return None if value is None else plain_number(value)

    @field_serializer("max_priority")
    def _unconverted(self, value: float | None) -> Any:
        return value


NO_LIMITS = OwnerLimits()


PRESETS = ("high", "medium", "low")
"""Presets of preemption: how readily items give way."""


class Preemption(Strict):
    """Who may take whose place. Only items that are preemptible, and in no protected pool, ever give way."""

    preset: Annotated[str, Field(pattern=rf"^({'|'.join(PRESETS)}|env:.+)$")] | None = None
    """``high``, ``medium`` or ``low``, or ``env:NAME`` for that of an environment variable: sets the next two."""
    label: MaybeSeconds = 0.5
    """The least difference of priority for ``label_rules``."""
    same_pool: Annotated[float, Field(gt=0)] = 1.0
    """The least difference of priority inside a pool."""
    other_pool: Annotated[float, Field(gt=0)] = 5.0
    """The same between pools."""
    enable_cross_pool: bool = True
    """Whether priority alone may displace items of other pools."""
    label_rules: dict[str, dict[str, tuple[str, ...]]] = {}
    """``{key: {value: [victim values]}}``: items with this label may displace those with one of the others."""
    min_runtime_s: MaybeSeconds = 60.0
    """How long an attempt runs before it can be preempted; items may have their own."""
    cool_down_s: MaybeSeconds = 300.0
    """How long an item that was preempted is spared."""
    grace_s: MaybeSeconds = 30.0
    """An item that was asked to stop and still runs 5 s after this time is killed."""


class ServiceTls(Strict):
    """PEM files of the service's TLS identity; ``cert`` may contain a chain."""

    cert: str
    key: str


class Tracing(Strict):
    """A collector of OpenTelemetry: its base address; ``/v1/traces`` is added."""

    endpoint: CollectorAddress


class Serving(Strict):
    """The router of inference requests in a service."""

    legacy_routes: bool = False
    """Serve its routes without the prefix ``/api/v1/serving`` as well."""
    allow: tuple[Network, ...] = ("127.0.0.0/8", "::1/128")
    """Networks in which instances may be registered over HTTP."""
    config: str | None = None
    """A YAML file with instances and strategies, read at the start of the service."""


class Settings(Strict):
    """All are optional; each can also be set by the environment variable ``RMCS_<NAME>``."""

    resource_threshold: Threshold = Threshold()
    """Above this share in use, a cluster takes no new top-level work. One number, or ``{cpu: , gpu: , memory: }``."""
    threshold_on: Literal["reserved", "observed", "max"] = "reserved"
    """What counts as in use: what Ray has allocated (``reserved``), what is measured (``observed``), or the larger."""
    submission_interval_s: MaybeSeconds = 40.0
    """The minimum time between two top-level submissions to one cluster …"""
    submission_interval_kinds: frozenset[Literal["job", "task", "actor"]] = frozenset({"job"})
    """… of these kinds. Retries and reconnected items do not wait."""
    execution_mode: Literal["parallel", "serial"] = "parallel"
    """``serial``: at most one top-level item runs on a cluster (an actor counts until it is ready)."""
    max_queue: Annotated[int, Field(ge=1)] = 100_000
    """At this number of waiting items, submissions are refused with QueueFullError."""
    dedup: Literal["none", "content"] = "none"
    """``content``: a submission equal to an unfinished item is joined to it."""
    retries: Count = 0
    """Retries after an exception of user code."""
    crash_retries: Count = 3
    """Retries after its worker or node died."""
    lost_retries: Count = 3
    """Retries after its cluster was lost; tasks and actors."""
    retry_backoff: RetryBackoff = RetryBackoff()
    """The delay before a retry."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """After so many consecutive failures, a cluster gets no work."""
    breaker_recovery_s: Seconds = 60.0
    """The time until it is probed."""
    heartbeat_s: Seconds = 5.0
    """A cluster that missed three heartbeats is suspect, and gets no new work."""
    lease_s: Seconds = 45.0
    """Work in a cluster ends itself after this time without contact to the control plane."""
    lost_after_s: Seconds = 60.0
    """A silent cluster is lost after this time; at least 10 s more than ``lease_s``."""
    node_grace_s: MaybeSeconds = 60.0
    """After a restart of a cluster with several nodes, old nodes may run on for this time."""
    start_grace_s: Seconds = 60.0
    """An attempt that does not start within this time is recalled."""
    snapshot_interval_s: Seconds = 5.0
    """How often a cluster without an agent is polled for free resources, while items wait or run."""
    health_check_interval_s: Seconds = 30.0
    """How often clusters are checked, while items wait or run, or a person views them."""
    prefetch_ms: Milliseconds = 50.0
    """How much work that is known to be short is prefetched to a cluster; 0 for none."""
    reserve_after_s: MaybeSeconds = 300.0
    """A large item that has waited this long gets a reservation."""
    ageing_s: Seconds = 3600.0
    """Waiting for this time raises the priority by one."""
    order: Literal["fair", "fifo"] = "fair"
    """At equal priority: fair between owners, or first in, first out."""
    owners: dict[str, OwnerLimits] = {}
    """Weights and limits by owner."""
    preemption: Preemption = Preemption()
    """Who gives way to whom when there is no room."""
    combine: Literal["weighted", "chain"] = "weighted"
    """Scores are added up by weight, or compared one after another."""
    weights: dict[str, Annotated[float, Field(ge=0)]] = {"load": 1.0}
    """Which scores choose among the clusters that can take an item; ``{}`` is round robin."""
    near_equal_scores: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Clusters whose scores differ by at most this share take turns; 0: only those with equal scores."""
    policies: dict[str, AttributePath] = {}
    """Custom policies: name to ``package.module:Class``."""
    agent_listen: str = "auto"
    """Where agents dial in, ``host:port``; ``auto`` is a free port, on loopback if all clusters are local."""
    agent_advertise: str = "auto"
    """The address that agents dial, if it differs from the listening address."""
    connector_python: Annotated[str, Field(min_length=1)] | None = None
    """A Python on this machine that has ray, for clusters that are reached by Ray Client; each may name its own."""
    agent_idle_s: Seconds = 300.0
    """An agent without work ends after this."""
    agent_linger_s: MaybeSeconds = 30.0
    """How long an agent waits, when its program has ended, for the next program of the same user; 0: it ends."""
    program_lease_s: Seconds = 60.0
    """The actors of a program end when it is silent for this time (service)."""
    keep_history_s: Seconds = 30 * 86_400.0
    """How long a service keeps ended items …"""
    keep_history_items: Count = 1_000_000
    """… and how many of them."""
    keep_payloads_s: Seconds = 7 * 86_400.0
    """How long a service keeps code, arguments, values and output of ended items."""
    max_payload_bytes: Annotated[int, Field(ge=1)] = 2**30
    """A larger payload is refused."""
    payload_quota_bytes: Annotated[int, Field(ge=1)] = 100 * 2**30
    """The total of all payloads of a service; more is refused at submission."""
    auth: Literal["token", "none"] = "token"
    """``none``: no token is required; on loopback only."""
    service_tls: ServiceTls | None = None
    """Serve https with these files."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may use the API, with a token of their own."""
    max_connections: Annotated[int, Field(ge=1)] = 2_000
    """Further connections are answered with 503."""
    serving: Serving = Serving()
    """The router of inference requests (service): which networks, routes and instances."""
    tracing: Tracing | None = None
    """Send a trace of each ended item to this collector (service); needs the extra ``otel``."""

    @field_validator("resource_threshold", mode="before")
    @classmethod
    def _one_number_for_all(cls, value: object) -> object:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return {"cpu": value, "gpu": value, "memory": value}
        return value

    @model_validator(mode="after")
    def _lost_only_after_the_lease(self) -> Self:
        if self.lost_after_s < self.lease_s + LEASE_MARGIN_S:
            raise ValueError(
                f"lost_after_s ({self.lost_after_s:g}) must be at least {LEASE_MARGIN_S:g} s longer than "
                f"lease_s ({self.lease_s:g}), or two attempts of one task could live at once"
            )
        return self

    @model_validator(mode="after")
    def _lease_outlasts_missed_heartbeats(self) -> Self:
        if self.lease_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"lease_s ({self.lease_s:g}) must be at least three times heartbeat_s ({self.heartbeat_s:g}): the "
                "lease is renewed by heartbeats, and what runs would end itself before the cluster is even suspect"
            )
        return self

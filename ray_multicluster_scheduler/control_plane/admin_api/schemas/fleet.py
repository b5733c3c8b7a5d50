"""Models of the routes of clusters and of the fleet."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import ID, ApiModel, optional, required
from ray_multicluster_scheduler.control_plane.admin_api.schemas.items import Reason
from ray_multicluster_scheduler.control_plane.admin_api.schemas.pools import QuotaUse
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Raw
from ray_multicluster_scheduler.control_plane.config.item_models import TaskModel


class Cluster(ApiModel):
    """A cluster; null stands for an unknown value."""

    name: str = required(example="mac")
    state: str = required("UP, or the code of its problem.", "UP")
    sentence: str = required("The problem; a paused queue is none, see `paused`.")
    cordoned: bool = required("Closed for new work.", False)
    cordon_reason: str | None = optional("The reason of the cordon, if one was given.", None)
    items: int = required("Number of our items on the cluster.")
    paused: str | None = optional("The reason of the pause of its queue, maybe empty; null: not paused.", None)
    stale: bool = optional("No problem is known, but the data is old: use refresh=true.")
    carrier: str | None = optional(
        "The carrier in use: agent, dial_in, ray_client, or http if only jobs can run.", "agent"
    )
    tasks_by: str | None = optional(
        "The carrier of tasks and actors, and the reason for it.",
        "agent: it has a dashboard to start an agent with",
    )
    other_control_planes: list[str] = optional("Other control planes with agents there when ours was last started.", [])
    tags: list[str] = optional(example=["macos", "arm64"])
    prefer: bool = optional(example=True)
    weight: float = optional(example=1.2)
    dashboard: str | None = optional(example="http://192.168.5.2:8265")
    head_address: str | None = optional(example="192.168.5.2:32546")
    current: bool = optional("The data of its nodes is current; else it is of `snapshot_at`.", True)
    snapshot_at: float | None = optional(example=1794700800.0)
    nodes: int | None = optional(example=1)
    total: dict[str, float] | None = optional(example={"CPU": 8.0})
    free: dict[str, float] | None = optional(example={"CPU": 7.0})
    ray_version: str | None = optional(example="2.55.0")
    python_version: str | None = optional(example="3.11.7")
    os: str | None = optional(example="darwin")
    arch: str | None = optional(example="arm64")


class Breaker(ApiModel):
    state: str = required(example="CLOSED")
    failures_in_a_row: int = required(example=0)
    half_open_at: float | None = required()


class Trouble(ApiModel):
    concerns: str = required()
    code: str = required()
    sentence: str = required()
    since: float | None = optional()


class ClusterDetails(Cluster):
    drained: bool | None = required("Closed for new work and empty; null: it is open.")
    config: dict[str, Any] = required(
        "Its entry in clusters.yaml, without secrets.", {"name": "mac", "dashboard": "http://192.168.5.2:8265"}
    )
    breaker: Breaker = required()
    troubles: list[Trouble] = required(example=[])
    notes: list[str] = required("Remarks that are no problems.")
    link: str = required("The link for tasks and actors: none, up or down.", "up")
    in_flight: int = required()
    ahead: int = required("Prefetched: sent before a slot is free.", 0)
    running_jobs: int = required()
    ready_actors: int = required(example=0)
    kept_for: str | None = required("The item with a reservation; its id if the caller may see it.")
    next_submission_at: float | None = required()
    heard_at: float | None = required(example=1794700800.0)


class Clusters(ApiModel):
    clusters: list[Cluster] = required()


class Node(ApiModel):
    NodeID: str = required(example="5f2c")
    Alive: bool = required()
    Resources: dict[str, Any] = required(example={"CPU": 8.0})
    Cluster: str = required(example="mac")


class Nodes(ApiModel):
    nodes: list[Node] = required()


class Drained(ApiModel):
    drained: bool | None = required("null: it is open for new work.")


class ItemsOnCluster(ApiModel):
    items: list[str] = required("Ids of the items on the cluster.", [ID])


class Cordoned(ItemsOnCluster):
    changed: bool = required("false: it already was in this state.")


class DeclareDead(Reason):
    force: bool = optional("Even if the cluster answers.")


class Checked(ApiModel):
    answered: bool = required()
    reason: str = required("Why it did not answer.")
    cluster: ClusterDetails = required()


class Cordon(Reason):
    pass


class Drain(Reason):
    timeout: float = optional("Seconds to wait, at most 60.", 0, ge=0)


class DrainState(ItemsOnCluster):
    drained: bool = required(example=False)


class Apply(ApiModel):
    clusters: list[dict[str, Any]] = optional("As in clusters.yaml.")
    settings: dict[str, Any] = optional("Compared only: settings change at the next start.")
    text: str = optional("The text of a clusters.yaml, instead of `clusters`.")


class Applied(ApiModel):
    added: list[str] = required()
    changed: list[str] = required(example=["mac"])
    removed: list[str] = required()
    unchanged: list[str] = required()
    not_applied: list[str] = required("Settings that differ; they apply at the next start.")
    not_empty: list[str] = required("In a dry run: clusters to drain first.")


class Paused(ApiModel):
    changed: bool = required("false: it already was in this state.")
    cluster: str = optional(example="mac")
    owner: str = optional()


class Plan(ApiModel):
    task: TaskModel = required(example={"kind": "job", "name": "nightly", "job": {"entrypoint": "ls"}})


class Placement(ApiModel):
    cluster: str | None = required()
    candidates: list[dict[str, Any]] = optional(example=[])
    pool_use: list[QuotaUse] = optional("If it waits for the quota of its pool: the use of each resource.")


class Simulate(ApiModel):
    synthetic: str = required(
        "A synthetic workload, as for `rmcs simulate --synthetic`.", "items=50 over=10min run=constant:30"
    )
    nodes: dict[str, str] = optional("Sizes of clusters by name; by default the last known ones.", {"mac": "2x{CPU:8}"})
    settings: dict[str, Any] = optional("Replacements for the settings in force.")
    seed: int = optional("Same seed, same run.", 1, ge=0)


_MAC = {"name": "mac", "dashboard": "http://127.0.0.1:9", "weight": 1.2}
CONFIGURATIONS: dict[str, Any] = {
    "clusters": {"clusters": [_MAC]},
    "text": {"text": "clusters:\n- {name: mac, dashboard: 'http://127.0.0.1:9', weight: 1.2}\n"},
}
TRACE_CSV = Raw("submit,shape,run\n0.0,CPU=1,61.5\n", "text/csv")
SIMULATION_RESULT = Raw(
    {"items": 50}, "application/json", {"type": "object", "description": "The results, as of `rmcs simulate -o json`."}
)

"""What the routes of clusters and of the fleet take and answer."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import ID, ApiModel, optional, required
from ray_multicluster_scheduler.control_plane.admin_api.schemas.items import Reason
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Raw, RouteDocs
from ray_multicluster_scheduler.control_plane.config.item_models import TaskModel


class Cluster(ApiModel):
    """A cluster; null where something is not known."""

    name: str = required(example="mac")
    state: str = required("UP, or a code for what is wrong with it.", "UP")
    sentence: str = required("What is wrong with it; a paused queue is not, see `paused`.")
    cordoned: bool = required("Closed for new work.", False)
    items: int = required("How many of our items are there.")
    paused: str | None = optional("Why its queue is paused, maybe empty; null: it is not.", None)
    stale: bool = optional("No trouble is known, and nothing new either: ask with refresh=true.")
    carrier: str | None = optional(
        "How it is reached now: agent, dial_in, ray_client, or http for jobs alone.", "agent"
    )
    tasks_by: str | None = optional(
        "How tasks and actors get there, and why that way.", "agent: it has a dashboard, by which an agent is started"
    )
    other_control_planes: list[str] = optional("Those that had agents there when ours was last started.", [])
    tags: list[str] = optional(example=["macos", "arm64"])
    prefer: bool = optional(example=True)
    weight: float = optional(example=1.2)
    dashboard: str | None = optional(example="http://192.168.5.2:8265")
    head_address: str | None = optional(example="192.168.5.2:32546")
    current: bool = optional("The data of its nodes are of now; else they are as of `snapshot_at`.", True)
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
    drained: bool | None = required("Closed and empty; null: it is open.")
    config: dict[str, Any] = required(
        "Its entry in clusters.yaml, without secrets.", {"name": "mac", "dashboard": "http://192.168.5.2:8265"}
    )
    breaker: Breaker = required()
    troubles: list[Trouble] = required(example=[])
    notes: list[str] = required("What is worth knowing, and is no trouble.")
    link: str = required("Of tasks and actors: none, up or down.", "up")
    in_flight: int = required()
    ahead: int = required("Sent before there is a place for it.", 0)
    running_jobs: int = required()
    ready_actors: int = required(example=0)
    kept_for: str | None = required("The item that room is kept for; its id for those who may know it.")
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


class ItemsThere(ApiModel):
    items: list[str] = required("Ids of the items there.", [ID])


class Cordoned(ItemsThere):
    changed: bool = required("false: it was so already.")


class DeclareDead(Reason):
    force: bool = optional("Although it answers.")


class Checked(ApiModel):
    answered: bool = required()
    reason: str = required("Why it did not.")
    cluster: ClusterDetails = required()


class Drain(ApiModel):
    timeout: float = optional("Seconds to wait, 60 at the most.", 0, ge=0)


class DrainState(ItemsThere):
    drained: bool = required(example=False)


class Apply(ApiModel):
    clusters: list[dict[str, Any]] = optional("As in clusters.yaml.")
    settings: dict[str, Any] = optional("Only compared: they change with the next start.")
    text: str = optional("Or the text of a clusters.yaml.")


class Applied(ApiModel):
    added: list[str] = required()
    changed: list[str] = required(example=["mac"])
    removed: list[str] = required()
    unchanged: list[str] = required()
    not_applied: list[str] = required("Settings that differ: they hold from the next start on.")
    not_empty: list[str] = required("In a dry run: those that have to be drained first.")


class Paused(ApiModel):
    changed: bool = required("false: it was so already.")
    cluster: str = optional(example="mac")
    owner: str = optional()


class Plan(ApiModel):
    task: TaskModel = required(example={"kind": "job", "name": "nightly", "job": {"entrypoint": "ls"}})


class Placement(ApiModel):
    cluster: str | None = required()
    candidates: list[dict[str, Any]] = optional(example=[])


class Simulate(ApiModel):
    synthetic: str = required(
        "A made-up workload, as of `rmcs simulate --synthetic`.", "items=50 over=10min run=constant:30"
    )
    nodes: dict[str, str] = optional(
        "How large clusters are, by name; else as they were last seen.", {"mac": "2x{CPU:8}"}
    )
    settings: dict[str, Any] = optional("Instead of those that are in force.")
    seed: int = optional("Same seed, same run.", 1, ge=0)


_MAC = {"name": "mac", "dashboard": "http://127.0.0.1:9", "weight": 1.2}
CLUSTERS = RouteDocs("All clusters", Clusters)
CLUSTER = RouteDocs("One cluster", ClusterDetails)
NODES = RouteDocs("The nodes of all clusters", Nodes)
DRAINED = RouteDocs("Whether no item of ours is left on a closed cluster", Drained)
CORDON = RouteDocs("Close a cluster for new work", Cordoned)
UNCORDON = RouteDocs("Open a cluster for new work", Cordoned)
DECLARE_DEAD = RouteDocs("Settle what was on a cluster that is dead", ItemsThere, DeclareDead)
CHECK = RouteDocs("Check a cluster now", Checked)
DRAIN = RouteDocs("Close a cluster for new work, and wait until it is empty", DrainState, Drain)
APPLY = RouteDocs(
    "Add, change and remove clusters",
    Applied,
    Apply,
    examples={
        "clusters": {"clusters": [_MAC]},
        "text": {"text": "clusters:\n- {name: mac, dashboard: 'http://127.0.0.1:9', weight: 1.2}\n"},
    },
)
PAUSE = RouteDocs("Start nothing new on a cluster, or of an owner", Paused, Reason)
RESUME = RouteDocs("Resume a paused queue", Paused)
PLAN = RouteDocs("Where an item would go now, and why", Placement, Plan)
TRACE = RouteDocs("Past work, as a trace for simulations", Raw("submit,shape,run\n0.0,CPU=1,61.5\n", "text/csv"))
SIMULATE = RouteDocs(
    "Simulate a workload",
    Raw(
        {"items": 50},
        "application/json",
        {"type": "object", "description": "The figures of the run, as of `rmcs simulate -o json`."},
    ),
    Simulate,
)

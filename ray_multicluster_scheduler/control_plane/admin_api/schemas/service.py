"""Models of the routes of the service itself: probes, settings, load, events, payloads, tokens."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.logging import LEVELS
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import PAYLOAD, ApiModel, optional, required
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import BYTES, BYTES_SCHEMA, JSON, Raw

Column = list[float | None]
PAYLOAD_BYTES = Raw(PAYLOAD.decode(), BYTES, BYTES_SCHEMA)


class Health(ApiModel):
    status: str = required(example="ok")


class NotReady(ApiModel):
    status: str = required(example="not ready")
    reason: str = required(example="is being stopped")


class SettingsInForce(ApiModel):
    settings: dict[str, Any] = required(example={"retries": 0})
    source: str = required("The file or variable that they were read from.", "clusters.yaml")
    clusters: list[dict[str, Any]] = required("Without secrets.", [{"name": "mac", "auth": None}])
    pools: list[dict[str, Any]] = required("Those in force that the caller may see.", [])


class Fleet(ApiModel):
    version: str = required(example="0.1.0")
    control_plane: str = required(example="1a2b3c")
    settings: dict[str, Any] = required()
    clusters: list[str] = required(example=["mac"])
    homes: list[str] = required(example=["/home/ann"])
    not_ready: str | None = required("Why it accepts no new work, as in `is draining …`; null: it does.")


class LogLevel(ApiModel):
    level: str = required("The lowest level that is written.", "DEBUG", json_schema_extra={"enum": list(LEVELS)})


class ClusterLoad(ApiModel):
    """Items on the cluster, prefetched items, 1 if it accepted work, and the used share of its resources."""

    items: Column = required(example=[None, 8])
    ahead: Column = required(example=[None, 0])
    up: Column = required(example=[None, 1])
    cpu: Column = required(example=[None, 1.0])
    gpu: Column = required(example=[None, None])
    memory: Column = required(example=[None, 0.25])


class Series(ApiModel):
    every_s: int = required(example=60)
    at: list[float] = required("Seconds since 1970.", [1794700740, 1794700800])
    queues: dict[str, Column] = required(
        "Number of waiting items by queue: task and job.", {"task": [0, 3], "job": [0, 1]}
    )
    running: Column = required(example=[None, 8])
    clusters: dict[str, ClusterLoad] = required("By cluster.")


class Stored(ApiModel):
    digest: str = required(example=digest_of(PAYLOAD))
    bytes: int = required(example=len(PAYLOAD))


class Token(ApiModel):
    id: str = required("For listing and revoking; not secret.", "k3v9x2ab")
    user: str = required()
    roles: list[str] = required("viewer, submitter, operator or admin", ["submitter"])
    note: str = required(example="her laptop")
    created_at: float = required("Seconds since 1970.", 1794700800.0)
    expires_at: float | None = required("Seconds since 1970; null: never.")


class Tokens(ApiModel):
    tokens: list[Token] = required()


class NewToken(Token):
    token: str = required("The secret text, shown once and not stored.", "rmcs_k3v9x2ab_…")


class CreateToken(ApiModel):
    user: str = required()
    roles: list[str] = required("viewer, submitter, operator or admin", ["submitter"])
    note: str = optional(example="her laptop")
    expires_at: float | None = optional("Seconds since 1970.")


class Session(ApiModel):
    user: str = required()
    roles: list[str] = required("viewer, submitter, operator or admin", ["submitter"])
    expires_in: float = required("Seconds.", 43200.0)


class Ended(ApiModel):
    ended: bool = required("Whether there was a session.")


class Ticket(ApiModel):
    ticket: str = required("The value of ?ticket=, valid once.", "0pAq…")
    expires_in: float = required("Seconds.", 30.0)


OPENAPI_DOCUMENT = Raw({"openapi": "3.1.0", "info": {}, "paths": {}}, JSON, {"type": "object"})
METRICS_TEXT = Raw("# TYPE rmcs_queue_depth gauge\nrmcs_queue_depth 3\n", "text/plain")
EVENT_STREAM = Raw(
    "id: 17\n"
    'data: {"number":17,"type":"transition","at":1794700800.0,"id":"nightly-1","kind":"job","name":"nightly",'
    '"owner":"ann","step":2,"state":"QUEUED","attempt":0,"cluster":null,"code":"QUEUED","sentence":"waits"}\n\n',
    "text/event-stream",
    {"type": "string", "description": "Server-sent events; docs/events.md has the fields of each."},
)
LAST_EVENT_ID: dict[str, Any] = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The number of the last event that the client has; takes precedence over since.",
    "schema": {"type": "string", "pattern": "^[0-9]*$"},
    "example": "17",
}

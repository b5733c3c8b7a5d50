"""What the routes of the service itself take and answer: probes, settings, load, events, payloads, tokens."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.logging import LEVELS
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import ApiModel, optional, required
from ray_multicluster_scheduler.control_plane.admin_api.schemas.parameters import PAYLOAD
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import (
    BYTES,
    BYTES_SCHEMA,
    JSON,
    Raw,
    RouteDocs,
)

Column = list[float | None]
_PAYLOAD = Raw(PAYLOAD.decode(), BYTES, BYTES_SCHEMA)


class Health(ApiModel):
    status: str = required(example="ok")


class NotReady(ApiModel):
    status: str = required(example="not ready")
    reason: str = required(example="is being stopped")


class SettingsInForce(ApiModel):
    settings: dict[str, Any] = required(example={"retries": 0})
    source: str = required("Where they came from.", "clusters.yaml")
    clusters: list[dict[str, Any]] = required("Without secrets.", [{"name": "mac", "auth": None}])


class Fleet(ApiModel):
    version: str = required(example="0.1.0")
    control_plane: str = required(example="1a2b3c")
    settings: dict[str, Any] = required()
    clusters: list[str] = required(example=["mac"])
    homes: list[str] = required(example=["/home/ann"])
    not_ready: str | None = required("Why it takes nothing new, as in `is draining …`; null: it does.")


class LogLevel(ApiModel):
    level: str = required("The lowest level that is written.", "DEBUG", json_schema_extra={"enum": list(LEVELS)})


class ClusterLoad(ApiModel):
    """Items there, items sent ahead, 1 if it took work, and the part of its resources that was taken."""

    items: Column = required(example=[None, 8])
    ahead: Column = required(example=[None, 0])
    up: Column = required(example=[None, 1])
    cpu: Column = required(example=[None, 1.0])
    gpu: Column = required(example=[None, None])
    memory: Column = required(example=[None, 0.25])


class Series(ApiModel):
    every_s: int = required(example=60)
    at: list[float] = required("Seconds since 1970.", [1794700740, 1794700800])
    queues: dict[str, Column] = required("How many waited, by queue: task and job.", {"task": [0, 3], "job": [0, 1]})
    running: Column = required(example=[None, 8])
    clusters: dict[str, ClusterLoad] = required("By cluster.")


class Stored(ApiModel):
    digest: str = required(example=digest_of(PAYLOAD))
    bytes: int = required(example=len(PAYLOAD))


class Token(ApiModel):
    id: str = required("For listing and revoking; no secret.", "k3v9x2ab")
    user: str = required()
    roles: list[str] = required("viewer, submitter, operator or admin", ["submitter"])
    note: str = required(example="her laptop")
    created_at: float = required("Seconds since 1970.", 1794700800.0)
    expires_at: float | None = required("Seconds since 1970; null: never.")


class Tokens(ApiModel):
    tokens: list[Token] = required()


class NewToken(Token):
    token: str = required("Shown once, and kept nowhere.", "rmcs_k3v9x2ab_…")


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
    ended: bool = required("There was one.")


class Ticket(ApiModel):
    ticket: str = required("For ?ticket=, once.", "0pAq…")
    expires_in: float = required("Seconds.", 30.0)


HEALTH = RouteDocs("It answers", Health)
READY = RouteDocs("It can accept work", Health, others={503: ("It cannot, and why.", NotReady)})
OPENAPI = RouteDocs("This document", Raw({"openapi": "3.1.0", "info": {}, "paths": {}}, JSON, {"type": "object"}))
SETTINGS = RouteDocs("The settings that are in force", SettingsInForce)
FLEET = RouteDocs("What a client has to know to submit", Fleet)
LOG_LEVEL = RouteDocs("How much is written to the log", LogLevel)
SET_LOG_LEVEL = RouteDocs("Write more, or less, to the log", LogLevel, LogLevel)
SERIES = RouteDocs("Load and queues over time", Series)
METRICS = RouteDocs("Figures for Prometheus", Raw("# TYPE rmcs_queue_depth gauge\nrmcs_queue_depth 3\n", "text/plain"))
EVENTS = RouteDocs(
    "Events, as they happen",
    Raw(
        "id: 17\n"
        'data: {"number":17,"type":"transition","at":1794700800.0,"id":"nightly-1","kind":"job","name":"nightly",'
        '"owner":"ann","step":2,"state":"QUEUED","attempt":0,"cluster":null,"code":"QUEUED","sentence":"waits"}\n\n',
        "text/event-stream",
        {"type": "string", "description": "Server-sent events; docs/events.md has the fields of each."},
    ),
    headers=(
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "description": "The number of the last event that you have; as since, and before it.",
            "schema": {"type": "string", "pattern": "^[0-9]*$"},
            "example": "17",
        },
    ),
)
PUT_BLOB = RouteDocs("Keep a payload", Stored, _PAYLOAD)
GET_BLOB = RouteDocs("A payload", _PAYLOAD)
LIST_TOKENS = RouteDocs("All tokens, without their secrets", Tokens)
CREATE_TOKEN = RouteDocs("Make a token", NewToken, CreateToken)
REVOKE_TOKEN = RouteDocs("Revoke a token", Token)
LOG_IN = RouteDocs("Begin a session of a browser", Session)
LOG_OUT = RouteDocs("End the session", Ended)
TICKET = RouteDocs("A ticket for one stream of events or one web socket", Ticket)

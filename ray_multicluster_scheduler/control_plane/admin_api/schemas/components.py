"""The parts of the document that several routes speak of. What an item may say is made from what is checked."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import (
    ANYTHING,
    Schema,
    by_name,
    flag,
    many,
    number,
    or_null,
    text,
    thing,
    whole,
)
from ray_multicluster_scheduler.control_plane.config.item_models import ITEM_MODELS

STATES = [str(state) for state in TaskState]


class _ItemSchema(GenerateJsonSchema):
    """JSON Schema without titles, which repeat the names, and without null as the default of what is not given."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> Schema:
        found = super().default_schema(schema)
        if found.get("default", 0) is None:
            del found["default"]
        return found


def item_components() -> dict[str, Schema]:
    """What may be said of an item: the models that validate it."""
    models = [(one, "validation") for one in ITEM_MODELS.values()]
    _, made = models_json_schema(models, ref_template="#/components/schemas/{model}", schema_generator=_ItemSchema)  # type: ignore[arg-type]
    found: dict[str, Schema] = made["$defs"]
    for schema in found.values():
        del schema["title"]
    return found


PROBLEM = thing(
    "An RFC 9457 problem document, with our own words beside it.",
    type=text(),
    title=text("The words for that status in HTTP."),
    status=whole("The HTTP status."),
    detail=text("What happened, and what to do."),
    code=text("A code for programs, such as UNKNOWN_ITEM."),
    error=text("The class of the Python error, such as UnknownItemError."),
    message=text("What happened."),
    maybe={
        "next_step": or_null(text("What to do.")),
        "task_id": or_null(text("To which item.")),
        "cluster": or_null(text("On which cluster.")),
        "missing": many(text(), "Digests of payloads that are not here."),
        "id": text("Of a defect: what the log calls it."),
    },
)

STATUS = thing(
    "An item as it is now.",
    id=text(),
    state=text("EXPIRED if it ended long ago and was forgotten.", enum=[*STATES, "EXPIRED"]),
    maybe={
        "kind": text(enum=["task", "actor", "job", "gang"]),
        "name": text(),
        "owner": text(),
        "attempt": whole("How often it was tried; 0 before the first time."),
        "cluster": or_null(text()),
        "number": whole("Of its last step."),
        "at": number("When that was, in seconds since 1970."),
        "code": text("Why it is in this state, for programs."),
        "sentence": text("The same for people."),
        "outcome": {**ANYTHING, "description": "How it ended, if it is over."},
        "actor": ANYTHING,
        "repeats": text("The item that it is a retry of."),
        "repeated_by": many(text(), "Its newest retries, oldest first."),
    },
)

ROW = thing(
    "An item in a list.",
    id=text(),
    kind=text(),
    name=text(),
    owner=text(),
    state=text(enum=STATES),
    attempt=whole(),
    cluster=or_null(text()),
    priority=whole(),
    submitted_at=number(),
    started_at=or_null(number("When its last attempt was seen to start.")),
    finished_at=or_null(number()),
)

CLUSTER = thing(
    "A cluster; null where something is not known.",
    name=text(),
    state=text("UP, or a code for what is wrong with it."),
    sentence=text("What is wrong with it; that its queue is paused is not: see `paused`."),
    cordoned=flag("Closed for new work."),
    items=whole("How many of ours are there."),
    maybe={
        "paused": or_null(text("Why its queue is paused, maybe nothing; null: it is not.")),
        "stale": flag("Nothing is known to be wrong, and nothing new is known: ask with refresh=true."),
        "carrier": or_null(text("How it is reached now: agent, dial_in, ray_client, or http for jobs alone.")),
        "tasks_by": or_null(text("How tasks and actors get there, and why that way.")),
        "other_control_planes": many(text(), "Those that had agents there when ours was last started."),
        "tags": many(text()),
        "prefer": flag(),
        "weight": number(),
        "dashboard": or_null(text()),
        "head_address": or_null(text()),
        "current": flag("Is what is said of its nodes of now? Else it is as of `snapshot_at`."),
        "snapshot_at": or_null(number()),
        "nodes": or_null(whole()),
        "total": or_null(by_name(number())),
        "free": or_null(by_name(number())),
        "ray_version": or_null(text()),
        "python_version": or_null(text()),
        "os": or_null(text()),
        "arch": or_null(text()),
    },
)

JOB_INFO = thing(
    "A job in Ray's words.",
    job_id=text(),
    status=text(),
    message=text(),
    maybe={
        "entrypoint": text(),
        "metadata": by_name(text()),
        "cluster": or_null(text()),
        "attempt": whole(),
        "ray_submission_id": or_null(text()),
        "submitted_at": number(),
        "started_at": or_null(number()),
        "finished_at": or_null(number()),
    },
)


def components() -> dict[str, Schema]:
    """All of them, by name."""
    parts = {"Problem": PROBLEM, "Status": STATUS, "Row": ROW, "Cluster": CLUSTER, "JobInfo": JOB_INFO}
    return {**item_components(), **parts}

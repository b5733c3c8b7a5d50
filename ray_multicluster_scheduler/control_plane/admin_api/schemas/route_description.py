"""described(): the rule of a route and its place in the OpenAPI document, for its decorator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import Response

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, needs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import Schema, named

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Said:
    """What goes one way: its schema, and examples by name. ``media`` is its Content-Type."""

    schema: Schema
    examples: Mapping[str, Any]
    media: str = JSON

    def content(self) -> dict[str, Any]:
        examples = {name: {"value": value} for name, value in self.examples.items()}
        return {self.media: {"schema": self.schema, "examples": examples}}


@dataclass(frozen=True, slots=True)
class Described:
    """A route. ``others`` are answers beside 200, by status, with a sentence; ``headers`` those that it looks at."""

    summary: str
    answer: Said
    body: Said | None = None
    others: Mapping[int, tuple[str, Said | None]] = field(default_factory=dict)
    headers: Sequence[Mapping[str, Any]] = ()


def one(schema: Schema, example: Any, media: str = JSON) -> Said:
    """With one example."""
    return Said(schema, {"example": example}, media)


def described(rule: Rule, route: Described) -> dict[str, Any]:
    """For the decorator of a route: ``@router.get("/clusters", **described(Rule.KNOWN, docs.CLUSTERS))``."""
    options = needs(rule)
    extra = {**options["openapi_extra"], "responses": _answers(route)}
    if route.body is not None:
        required = route.body.media != JSON or bool(route.body.schema.get("required"))
        extra["requestBody"] = {"required": required, "content": route.body.content()}
    if route.headers:
        extra["parameters"] = [dict(header) for header in route.headers]
    options.update(summary=route.summary, openapi_extra=extra, response_model=None, responses=_PROBLEMS)
    if route.answer.media != JSON:
        options["response_class"] = Response  # else the document would promise JSON, too
    return options


def _answers(route: Described) -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": "Done.", "content": route.answer.content()}}
    for status, (sentence, said) in route.others.items():
        answers[str(status)] = {"description": sentence, **({} if said is None else {"content": said.content()})}
    return answers


def _problem(error: str, status: int, code: str, message: str, next_step: str) -> dict[str, Any]:
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "code": code, "error": error}
    said.update(detail=f"{message} What to do: {next_step}", message=message, next_step=next_step)
    return {PROBLEM_JSON: {"schema": named("Problem"), "examples": {"example": {"value": said}}}}


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "It was refused: why, and what to do.",
        "content": _problem(
            "UnknownItemError",
            404,
            "UNKNOWN_ITEM",
            "There is no item 'nightli' here.",
            "use an id that a submit call returned",
        ),
    },
    "5XX": {
        "description": "It cannot be done now: why, and what to do.",
        "content": _problem(
            "ServiceUnavailableError",
            503,
            "SERVICE_UNAVAILABLE",
            "The service is being stopped.",
            "ask again when it runs again",
        ),
    },
}

IDEMPOTENCY_KEY: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A name of your own for this request. The same again is answered with what came of the first.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "example": "nightly-of-monday",
}

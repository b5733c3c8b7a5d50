"""described(): the rule of a route and its place in the OpenAPI document, for its decorator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Response
from pydantic import BaseModel

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, needs
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import PROBLEM_JSON, problem
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import REFERENCE, Schema, example_of

JSON = "application/json"
BYTES = "application/octet-stream"
BYTES_SCHEMA: Schema = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class Raw:
    """A body or an answer without a model: text, bytes, any object."""

    example: Any
    media: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})


def described(
    rule: Rule,
    answer: type[BaseModel] | Raw,
    body: type[BaseModel] | Raw | None = None,
    *,
    examples: Mapping[str, Any] | None = None,
    others: Mapping[int, tuple[str, type[BaseModel] | None]] | None = None,
    headers: Sequence[Mapping[str, Any]] = (),
    problem: Raw | None = None,
) -> dict[str, Any]:
    """Options of the decorator of a route: ``@router.get("/clusters", **described(Rule.KNOWN, Clusters))``.

    ``examples`` are bodies by name; without them one is made from the model. ``others`` are answers other than 200 by
    status, with a sentence. ``headers`` are those that the route reads, ``problem`` is a refusal
    that differs from those of other routes. Its docstring becomes summary and description.
    """
    options = needs(rule)
    answers: dict[str, Any] = {"200": {"description": "Done.", "content": _content(answer)}}
    for status, (sentence, model) in (others or {}).items():
        content = {} if model is None else {"content": _content(model)}
        answers[str(status)] = {"description": sentence, **content}
    extra = {**options["openapi_extra"], "responses": answers}
    if body is not None:
        needed = isinstance(body, Raw) or any(one.is_required() for one in body.model_fields.values())
        extra["requestBody"] = {"required": needed, "content": _content(body, examples)}
    if headers:
        extra["parameters"] = [dict(header) for header in headers]
    options.update(openapi_extra=extra, response_model=None, responses=_problems(problem))
    if isinstance(answer, Raw) and answer.media != JSON:
        options["response_class"] = Response  # else the document would promise JSON, too
    return options


def _problems(problem: Raw | None) -> dict[int | str, dict[str, Any]]:
    if problem is None:
        return _PROBLEMS
    return {status: {**about, "content": _content(problem)} for status, about in _PROBLEMS.items()}


def _content(content: type[BaseModel] | Raw, examples: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if isinstance(content, Raw):
        return {content.media: {"schema": content.schema, "examples": {"example": {"value": content.example}}}}
    shown = examples or {"example": example_of(content)}
    schema = {"$ref": REFERENCE.format(model=content.__name__)}
    return {JSON: {"schema": schema, "examples": {name: {"value": value} for name, value in shown.items()}}}


def _problem(error: str, status: int, code: str, message: str, next_step: str) -> dict[str, Any]:
    body = problem(status, code, error, message, next_step)
    return _content(Raw(body, PROBLEM_JSON, {"$ref": REFERENCE.format(model="Problem")}))


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The request was refused: the reason, and what to do.",
        "content": _problem(
            "UnknownItemError",
            404,
            "UNKNOWN_ITEM",
            "There is no item 'nightli' here.",
            "use an id that a submit call returned",
        ),
    },
    "5XX": {
        "description": "The request cannot be served now: the reason, and what to do.",
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
    "description": "A key that the client chooses. A repeated request with this key gets the result of the first.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "example": "nightly-of-monday",
}

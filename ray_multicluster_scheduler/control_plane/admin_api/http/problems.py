"""Errors as HTTP answers: RFC 9457 problem documents with an error code, a message and the next step."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import NotLetInError
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import MissingBlobs
from ray_multicluster_scheduler.serving.errors import BodyTooLargeError, TaskIdTakenError

PROBLEM_JSON = "application/problem+json"


class TooLarge(errors.TaskSubmissionError):
    """A body has more bytes than are read."""


class NoSuchCluster(errors.ConfigurationError):
    """A path names an unknown cluster."""


_STATUS: tuple[tuple[type[errors.SchedulerError], int], ...] = (
    (errors.UnknownItemError, 404),
    (NoSuchCluster, 404),
    (NotLetInError, 401),
    (errors.NotAllowedError, 403),
    (MissingBlobs, 424),
    (TaskIdTakenError, 409),
    (BodyTooLargeError, 413),
    (TooLarge, 413),
    (errors.TaskSubmissionError, 422),
    (errors.ConfigurationError, 422),
    (errors.StoreFullError, 507),
    (errors.QueueFullError, 429),
    (errors.ClusterConnectionError, 502),
    (errors.StoreError, 503),
    (errors.ServiceUnavailableError, 503),
)


class JsonResponse(JSONResponse):
    """JSON in pure ASCII, so that file names that are no valid text can be sent, too."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def problem(status: int, code: str, error: str, message: str, next_step: str) -> dict[str, Any]:
    """A problem document for what is refused before an exception could be raised."""
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "code": code}
    detail = f"{message} What to do: {next_step}"
    return {**document, "error": error, "message": message, "next_step": next_step, "detail": detail}


def problem_of(error: errors.SchedulerError) -> dict[str, Any]:
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 409)
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": str(error)}
    document.update(wire.problem_to_wire(error), code=error.code)
    if isinstance(error, MissingBlobs):
        document.update(missing=error.missing)
    elif isinstance(error, NoSuchCluster):
        document.update(code=errors.ConfigurationError.code)
    return document


def problem_response(document: dict[str, Any], headers: dict[str, str] | None = None) -> JsonResponse:
    return JsonResponse(document, status_code=int(document["status"]), media_type=PROBLEM_JSON, headers=headers)


async def answer_scheduler_error(_: Request, error: Exception) -> JsonResponse:
    """Exception handler for everything that our own code raises."""
    assert isinstance(error, errors.SchedulerError)
    return problem_response(problem_of(error))


async def answer_http_error(request: Request, error: Exception) -> JsonResponse:
    """Exception handler for what the framework refuses: unknown paths, wrong verbs, invalid query parameters."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status, message = 422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}."
        next_step = "correct it; docs/service.md lists all routes"
    else:
        assert isinstance(error, HTTPException)
        status, message = error.status_code, f"{request.method} {request.url.path}: {error.detail}."
        next_step = "docs/service.md lists all routes"
    code = "CONFIGURATION" if status == 422 else HTTPStatus(status).name
    document = problem(status, code, "ConfigurationError", message, next_step)
    return problem_response(document, getattr(error, "headers", None))

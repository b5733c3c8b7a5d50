"""Errors as answers: an RFC 9457 problem document, with our own words for what happened and what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import NotLetInError
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import Answer, NoSuchCluster, TooLarge
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import MissingBlobs

PROBLEM_JSON = "application/problem+json"
_STATUS: tuple[tuple[type[errors.SchedulerError], int], ...] = (
    (errors.UnknownItemError, 404),
    (NoSuchCluster, 404),
    (NotLetInError, 401),
    (errors.NotAllowedError, 403),
    (MissingBlobs, 424),
    (TooLarge, 413),
    (errors.TaskSubmissionError, 422),
    (errors.ConfigurationError, 422),
    (errors.StoreFullError, 507),
    (errors.QueueFullError, 429),
    (errors.ClusterConnectionError, 502),
    (errors.StoreError, 503),
    (errors.ServiceUnavailableError, 503),
)


def document(error: errors.SchedulerError) -> dict[str, Any]:
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 409)
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": str(error)}
    said.update(wire.problem_to_wire(error), code=error.code)
    if isinstance(error, MissingBlobs):
        said.update(missing=error.missing)
    elif isinstance(error, NoSuchCluster):
        said.update(code=errors.ConfigurationError.code)
    return said


async def of_http(request: Request, error: Exception) -> Answer:
    """What the HTTP layer itself refuses: no such path, no such verb, a query that is none."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        status, sentence, step = 422, f"{where}: {first['msg']}.", "correct it; docs/service.md names what there is"
    else:
        assert isinstance(error, HTTPException)
        asked = f"{request.method} {request.url.path}"
        status, sentence, step = error.status_code, f"{asked}: {error.detail}.", "docs/service.md names what there is"
    kind = HTTPStatus(status)
    code = "CONFIGURATION" if status == 422 else kind.name
    said = {"type": "about:blank", "title": kind.phrase, "status": status, "detail": sentence, "code": code}
    said.update(error="ConfigurationError", message=sentence, next_step=step)
    headers = getattr(error, "headers", None)
    return Answer(said, status_code=status, media_type=PROBLEM_JSON, headers=headers)


async def answer(_: Request, error: Exception) -> Answer:
    assert isinstance(error, errors.SchedulerError)
    said = document(error)
    return Answer(said, status_code=int(said["status"]), media_type=PROBLEM_JSON)

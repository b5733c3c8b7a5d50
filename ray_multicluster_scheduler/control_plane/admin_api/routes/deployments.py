"""Routes of deployments: replicas of a class as actors, each an instance of the service's serving scheduler."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, ValidationError

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access import ownership
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_if_others
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of, check_steered
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.routes.items import submission_from
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import ApiModel
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.runtime.service.service_deployments import ServiceReplicas, payloads_of
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import MissingBlobs
from ray_multicluster_scheduler.serving.deployment import Deployment, Deployments, unknown_deployment
from ray_multicluster_scheduler.serving.models import DeploymentOptions, DeploymentStatus

M = TypeVar("M", bound=BaseModel)
router = APIRouter(prefix="/api/v1/serving/deployments", tags=["serving"])


class NewDeployment(DeploymentOptions, ApiModel):
    """``task``: the actor of which every replica is a copy, as in POST /api/v1/items; its payloads are uploaded."""

    task: dict[str, Any] = Field(examples=[{"kind": "actor", "name": "ocr", "actor": {"ray_name": "ocr"}}])


class DeploymentList(ApiModel):
    deployments: list[DeploymentStatus]


class Scale(ApiModel):
    replicas: int = Field(ge=0, le=10_000, examples=[2])


@router.post("", **described(Rule.SUBMIT, DeploymentStatus, NewDeployment))
async def create(request: Request) -> Response:
    """Start a deployment, which continues until it is deleted. Its name is that of its model. The same request again
    is the same deployment. Python programs use `deploy`."""
    body, runtime, caller = await json_of(request), runtime_of(request), caller_of(request)
    runtime.check_running()
    wanted = _checked(NewDeployment, body)
    options = DeploymentOptions(**wanted.model_dump(exclude={"task"}))
    submission = submission_from({"task": wanted.task}, caller.user)
    submission = ownership.with_owner(caller, runtime.machine.limits_of, submission)
    if not caller.steers_all:
        submission = ownership.restricted_to_own(caller, submission)
    template = submission.task
    if template.actor is None:
        raise ConfigurationError(f"{template.id} is a {template.kind}.", next_step="give an actor")
    missing = await runtime.payload_ownership.missing(submission.user, payloads_of(template))
    if missing:
        raise MissingBlobs(missing, template.id)
    host = ServiceReplicas(runtime, options.name, template)
    known = next((one for one in deployments_of(request).list() if one.options.name == options.name), None)
    if known is None or (host_of(known).template.id, host_of(known).template.owner) != (template.id, template.owner):
        known = await deployments_of(request).add(options, host)
        host.save(options, (), deleted=False)
    await _durable(known)
    await record_if_others(request, template.owner, "deploy", options.name)
    return _answer(known)


@router.get("", **described(Rule.SEE, DeploymentList))
async def list_deployments(request: Request) -> Response:
    """The deployments, and the state of their replicas."""
    caller = caller_of(request)
    rows = [one for one in deployments_of(request).list() if caller.may_see(host_of(one).template.owner)]
    return JsonResponse({"deployments": [_status(one) for one in rows]})


@router.get("/{name}", **described(Rule.SEE, DeploymentStatus))
async def get(request: Request, name: str) -> Response:
    """A deployment, and the state of its replicas."""
    return _answer(_found(request, name))


@router.patch("/{name}", **described(Rule.STEER, DeploymentStatus, Scale))
async def scale(request: Request, name: str) -> Response:
    """Start more replicas, or drain and end the newest ones."""
    replicas = _checked(Scale, await json_of(request)).replicas
    found = _steered(request, name)
    found.scale(replicas)
    await _durable(found)
    await record_if_others(request, host_of(found).template.owner, "scale", name, {"replicas": replicas})
    return _answer(found)


@router.delete("/{name}", **described(Rule.STEER, DeploymentStatus))
async def delete(request: Request, name: str) -> Response:
    """Drain and end all replicas; then the deployment is forgotten."""
    found = _steered(request, name)
    found.delete()
    await _durable(found)
    await record_if_others(request, host_of(found).template.owner, "delete deployment", name)
    return _answer(found)


def deployments_of(request: Request) -> Deployments:
    found: Deployments = request.app.state.deployments
    return found


def host_of(deployment: Deployment) -> ServiceReplicas:
    assert isinstance(deployment.host, ServiceReplicas)
    return deployment.host


def _found(request: Request, name: str) -> Deployment:
    """Raises UnknownItemError, also for one that the caller may not see."""
    found = deployments_of(request).get(name)
    if not caller_of(request).may_see(host_of(found).template.owner):
        raise unknown_deployment(name)
    return found


def _steered(request: Request, name: str) -> Deployment:
    found = _found(request, name)
    check_steered(request, host_of(found).template.owner, f"The deployment {name}")
    return found


async def _durable(deployment: Deployment) -> None:
    await asyncio.wrap_future(host_of(deployment).written)


def _answer(deployment: Deployment) -> Response:
    return JsonResponse(_status(deployment))


def _status(deployment: Deployment) -> dict[str, Any]:
    return {**deployment.status().model_dump(), "owner": host_of(deployment).template.owner}


def _checked(model: type[M], body: dict[str, Any]) -> M:
    """Raises ConfigurationError."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{place}: {first['msg']}.", next_step="see /api/v1/openapi.json") from None

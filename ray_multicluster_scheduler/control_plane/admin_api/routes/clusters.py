"""Routes of clusters: list, inspect, check, cordon, drain, declare dead, and apply another configuration."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.common.exception import ConfigurationError, NotAllowedError, SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.access import ownership
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import cluster_shown
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import (
    check_cluster,
    json_of,
    runtime_of,
    seconds,
)
from ray_multicluster_scheduler.control_plane.admin_api.schemas import fleet as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.loader import config_from
from ray_multicluster_scheduler.control_plane.config.yaml_text import NO_LINES, parse_with_lines
from ray_multicluster_scheduler.control_plane.runtime import explanation, fleet_control
from ray_multicluster_scheduler.control_plane.runtime.event_publisher import shared_with
from ray_multicluster_scheduler.control_plane.runtime.input_checks import checked_reason
from ray_multicluster_scheduler.control_plane.runtime.service.fleet_changes import FleetChanges
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.health.health_checker import Health

router = APIRouter(prefix="/api/v1")
MAX_DRAIN_S = 60.0
POLL_S = 0.1
MAX_CLUSTERS = 1000
_SOURCE = "the request body"


@router.get("/clusters", tags=["fleet"], **described(Rule.KNOWN, docs.Clusters))
async def clusters(request: Request, refresh: bool = False) -> Response:
    """All clusters; ``refresh`` checks them first. Without it clusters not checked for
    ``health_check_interval_s`` are checked in the background; the next answer shows the result."""
    runtime = runtime_of(request)
    if refresh:
        await runtime.health.check_all()
    else:
        runtime.event_publisher.request_checks()
    return JsonResponse({"clusters": explanation.cluster_rows(runtime)})


@router.get("/nodes", tags=["fleet"], **described(Rule.KNOWN, docs.Nodes))
async def nodes(request: Request) -> Response:
    """The nodes of all clusters as of their last snapshots, in the form of Ray's API."""
    runtime = runtime_of(request)
    return JsonResponse({"nodes": explanation.node_rows(runtime, runtime.machine.registry.names())})


@router.get("/clusters/{name}/drained", tags=["fleet"], **described(Rule.KNOWN, docs.Drained))
async def drained(request: Request, name: str) -> dict[str, Any]:
    """Whether the cluster is free of our items; null if it is open for new work."""
    check_cluster(request, name)
    return {"drained": runtime_of(request).machine.clusters.is_drained(name)}


@router.post("/clusters/{name}/cordon", tags=["fleet"], **described(Rule.OPERATE, docs.Cordoned, docs.Cordon))
async def cordon(request: Request, name: str) -> dict[str, Any]:
    """Close a cluster for new work: ``{"reason": "…"}``; without one, that of an earlier cordon stays."""
    return await _cordoned(request, name, "cordon", await json_of(request))


@router.post("/clusters/{name}/uncordon", tags=["fleet"], **described(Rule.OPERATE, docs.Cordoned))
async def uncordon(request: Request, name: str) -> dict[str, Any]:
    """Open a cluster for new work again."""
    return await _cordoned(request, name, "uncordon", {})


async def _cordoned(request: Request, name: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    runtime, reason = runtime_of(request), checked_reason(body.get("reason", ""))
    check_cluster(request, name)
    items, changed = fleet_control.cordon(runtime, name, cordoned=verb != "uncordon", reason=reason)
    await runtime.until_durable()
    await record_action(request, verb, name, {"reason": reason} if reason else None)
    return {"items": items, "changed": changed}


@router.post(
    "/clusters/{name}/declare-dead", tags=["fleet"], **described(Rule.OPERATE, docs.ItemsOnCluster, docs.DeclareDead)
)
async def declare_dead(request: Request, name: str) -> dict[str, Any]:
    """Declare a cluster dead and settle its attempts now: ``{"reason": "…", "force": false}``."""
    body, runtime = await json_of(request), runtime_of(request)
    reason = checked_reason(body.get("reason", ""))
    check_cluster(request, name)
    items = await fleet_control.declare_dead(runtime, name, reason, force=body.get("force") is True)
    await runtime.until_durable()
    await record_action(request, "declare dead", name, {"reason": reason, "force": body.get("force") is True})
    return {"items": items}


@router.get("/clusters/{name}", tags=["clusters"], **described(Rule.KNOWN, docs.ClusterDetails))
async def cluster(request: Request, name: str, refresh: bool = True) -> Response:
    """One cluster, checked now; without ``refresh`` as of the last snapshot."""
    runtime = runtime_of(request)
    check_cluster(request, name)
    if refresh:
        await _checked(runtime, name)
    return JsonResponse(_details(request, name))


@router.post("/clusters/{name}/check", tags=["clusters"], **described(Rule.KNOWN, docs.Checked))
async def check(request: Request, name: str) -> Response:
    """Take a snapshot now, regardless of the circuit breaker; stopped links and jobs are retried. If the cluster
    answers an operator's check, the breaker closes."""
    runtime = runtime_of(request)
    check_cluster(request, name)
    closed_before = runtime.machine.clusters.health(name, runtime.clock.now()).breaker is BreakerState.CLOSED
    operator = caller_of(request).steers_all
    health = await _checked(runtime, name, by_operator=operator)
    answered = health.snapshot is not None
    if operator and answered and not closed_before:
        await record_action(request, "close breaker", name)
    return JsonResponse({"answered": answered, "reason": health.sentence, "cluster": _details(request, name)})


def _details(request: Request, name: str) -> dict[str, Any]:
    """The details for this caller: the item with a reservation is hidden from those who may not see it."""
    runtime = runtime_of(request)
    details = cluster_details(runtime, name)
    if details["kept_for"] is not None:
        details["kept_for"] = ownership.visible_id(caller_of(request), details["kept_for"], runtime.live_owner)
    return details


async def _checked(runtime: ServiceRuntime, name: str, *, by_operator: bool = False) -> Health:
    health = await (fleet_control.check_now(runtime, name) if by_operator else runtime.health.check(name))
    await asyncio.sleep(0)  # let the scheduler handle the snapshot first
    return health


@router.post("/clusters/{name}/drain", tags=["clusters"], **described(Rule.OPERATE, docs.DrainState, docs.Drain))
async def drain(request: Request, name: str) -> Response:
    """Close a cluster for new work, and wait until it is empty: ``{"timeout": 25, "reason": "…"}``, at most 60 s.
    Repeat the request if it is not empty by then."""
    body, runtime = await json_of(request), runtime_of(request)
    timeout = seconds(body, "timeout", 25.0, MAX_DRAIN_S)
    await _cordoned(request, name, "drain", body)
    drained = await _drained(runtime, name, asyncio.get_running_loop().time() + timeout)
    return JsonResponse({"drained": drained, "items": runtime.machine.clusters.items_on(name)})


async def _drained(runtime: ServiceRuntime, name: str, deadline: float) -> bool:
    """Raises SchedulerError if the cluster was uncordoned during the drain."""
    while not (drained := runtime.machine.clusters.is_drained(name)):
        if drained is None:
            raise SchedulerError(
                f"Cluster {name!r} was not drained: it was opened for new work again.",
                cluster=name,
                next_step="drain it again, if it should get no work",
            )
        if asyncio.get_running_loop().time() >= deadline or runtime.closed:
            return False
        await asyncio.sleep(POLL_S)
    return True


@router.post(
    "/clusters/apply",
    tags=["clusters"],
    **described(Rule.ADMINISTER, docs.Applied, docs.Apply, examples=docs.CONFIGURATIONS),
)
async def apply(request: Request, dry_run: bool = False) -> Response:
    """Replace the clusters: ``{"clusters": […]}``, or ``{"text": "the YAML of a clusters.yaml"}``, or ``{}`` to read
    the file again, as SIGHUP does. Clusters that are not named are removed; one that is removed, or moves to another
    address, must be empty. It holds until the next start, which reads the file. With ``dry_run`` nothing is changed:
    the answer is a preview, and ``not_empty`` names those that would have to be drained first."""
    body = await json_of(request)
    changes: FleetChanges = request.app.state.fleet_changes
    if body:
        if not caller_of(request).submits:
            raise NotAllowedError(
                "A cluster configuration can run code, so only a token that may run code may send one.",
                next_step="use a token with the roles admin and submitter; or change the file, and send {}",
            )
        wanted = await asyncio.to_thread(_config, body, runtime_of(request))
    else:
        wanted = await changes.read_again()
    if dry_run:
        return JsonResponse(changes.compare(wanted).to_dict())
    done = (await changes.apply(wanted)).to_dict()
    await record_action(request, "apply", "clusters", done)
    return JsonResponse(done)


def _config(body: dict[str, Any], runtime: ServiceRuntime) -> FleetConfig:
    """Raises ConfigurationError."""
    data: Any
    lines = NO_LINES
    match body:
        case {"text": str(text), **rest} if not rest:
            data, lines = parse_with_lines(text, _SOURCE)
        case {"clusters": list(), **rest} if not rest or list(rest) == ["settings"]:
            data = body
        case _:
            raise ConfigurationError(
                "The request has no clusters.", next_step='send {"clusters": […]} or {"text": "clusters: …"}'
            )
    config = config_from(data, _SOURCE, runtime.config.base_dir, lines=lines)
    if len(config.clusters) > MAX_CLUSTERS:
        raise ConfigurationError(
            f"The configuration has {len(config.clusters):,} clusters.", next_step="send at most 1,000"
        )
    for one in config.clusters:
        if one.auth_token is not None and not one.auth_token.get_secret_value().strip("*•"):
            raise ConfigurationError(
                f"The auth_token of {one.name} is masked, as the service displays it.",
                cluster=one.name,
                next_step="give the token itself, or ${NAME}",
            )
    given = data if isinstance(data, dict) else {}
    left = {key: getattr(runtime.config, key) for key in ("settings", "pools") if key not in given}
    return config.model_copy(update=left)


def cluster_details(runtime: ServiceRuntime, name: str) -> dict[str, Any]:
    """On the loop. Raises ConfigurationError."""
    now = runtime.clock.now()
    state, view = runtime.machine.registry.state(name), runtime.machine.view(name, now)
    row = next(row for row in explanation.cluster_rows(runtime) if row["name"] == name)
    concerns = (("everything", view.problem), ("tasks and actors", view.link_problem), ("jobs", view.job_problem))
    return {
        **row,
        "drained": runtime.machine.clusters.is_drained(name),
        "config": cluster_shown(runtime.config.cluster(name)),
        "breaker": {
            "state": str(state.breaker.state(now)),
            "failures_in_a_row": state.breaker.failures_in_a_row,
            "half_open_at": state.breaker.half_open_at,
        },
        "troubles": [
            {"concerns": what, "code": one.code, "sentence": one.sentence, "since": one.at}
            for what, one in concerns
            if one is not None
        ],
        "notes": [note for note in [shared_with(row["other_control_planes"])] if note],
        "link": view.link,
        "paused": view.paused,
        "in_flight": view.in_flight,
        "ahead": view.prefetched,
        "running_jobs": view.running_jobs,
        "ready_actors": view.ready_actors,
        "kept_for": view.reserved_for,
        "next_submission_at": view.next_submission_at,
        "heard_at": state.last_contact_at,
    }

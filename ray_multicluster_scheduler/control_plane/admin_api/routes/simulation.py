"""Routes that predict: the placement of one item now, the trace of past work, and a simulated workload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access import ownership
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import (
    Rule,
    caller_of,
    is_still_valid,
    visible_owner,
)
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.metrics.history_trace import history_trace
from ray_multicluster_scheduler.control_plane.admin_api.routes.new_items import missing_task_error, with_id
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import fleet as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.admin_api.simulation_process import MAX_ITEMS, SimulationRunner
from ray_multicluster_scheduler.control_plane.config.item_models import item_from
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime, SubmitRequest
from ray_multicluster_scheduler.simulation import Synthetic
from ray_multicluster_scheduler.simulation.workloads.trace import trace_text
from ray_multicluster_scheduler.simulation.workloads.workload import Item

router = APIRouter(prefix="/api/v1", tags=["fleet"])
_MAX_SEED = 2**53
_OPERATOR_SETTINGS = frozenset({"policies"})
"""Settings that name code to load: only the operator who starts the service may set them."""


@router.post("/plan", **described(Rule.KNOWN, docs.Placement, docs.Plan))
async def plan(request: Request) -> Response:
    """Where an item would be placed now, and why: ``{"task": {…}}``. Checks all clusters first, and submits nothing.
    An owner or a priority that the caller may not use is refused as in a submission."""
    body, runtime, caller = await json_of(request), runtime_of(request), caller_of(request)
    if not isinstance(body.get("task"), Mapping):
        raise missing_task_error()
    wanted = ownership.with_owner(caller, runtime.machine.limits_of, SubmitRequest(item_from(with_id(body["task"]))))
    await runtime.health.check_all()
    return JsonResponse(runtime.planned(wanted.task).to_dict())


@router.get("/trace", **described(Rule.SEE, docs.TRACE_CSV))
async def trace(request: Request) -> Response:
    """Past work as a CSV trace for `rmcs simulate`."""
    pages = history_trace(runtime_of(request).store, visible_owner(request))
    return StreamingResponse(_lines(pages, partial(is_still_valid, request)), media_type="text/csv")


async def _lines(pages: Iterator[list[Item]], still: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The header of the table is sent once, before the first page."""
    head = True
    while still() and (page := await asyncio.to_thread(next, pages, None)) is not None:
        text = trace_text(page)
        yield (text if head else text.partition("\n")[2]).encode(errors="backslashreplace")
        head = False


@router.post("/simulate", **described(Rule.STEER, docs.SIMULATION_RESULT, docs.Simulate))
async def simulate(request: Request) -> Response:
    """Simulate a synthetic workload in virtual time with the same scheduler: ``{"synthetic": "items=1000 over=1h",
    "nodes": {"mac": "4x{CPU:16}"}, "settings": {…}, "seed": 0}``. The clusters are this service's, in their last known
    size unless ``nodes`` gives another. Submits nothing. One simulation at a time, at most 5,000 items and 30 s."""
    body, runtime = await json_of(request), runtime_of(request)
    unknown = sorted(set(body) - {"synthetic", "nodes", "settings", "seed"})
    if unknown:
        raise ConfigurationError(
            f"A simulation has no parameter {unknown[0]!r}.", next_step="use synthetic, nodes, settings, seed"
        )
    runs: SimulationRunner = request.app.state.simulated_runs
    return JsonResponse(await runs.run(_simulation_request(body, runtime)))


def _simulation_request(body: dict[str, Any], runtime: ServiceRuntime) -> dict[str, Any]:
    """Raises ConfigurationError."""
    synthetic, seed = body.get("synthetic"), body.get("seed", 0)
    if not isinstance(synthetic, str) or len(synthetic) > 10_000:
        raise ConfigurationError(
            "synthetic is not a text.", next_step='for example "items=1000 over=1h run=constant:60"'
        )
    items = Synthetic.parse(synthetic).items
    if items is not None and items > MAX_ITEMS:
        raise ConfigurationError(
            f"The workload has {items:,} items.", next_step=f"simulate at most {MAX_ITEMS:,} in the service"
        )
    if type(seed) is not int or not 0 <= seed < _MAX_SEED:
        raise ConfigurationError(f"seed is {str(seed)[:100]!r}.", next_step="give a whole number, 0 or more")
    settings, nodes = _mapping(body, "settings"), _mapping(body, "nodes")
    if not _OPERATOR_SETTINGS.isdisjoint(settings):
        raise ConfigurationError(
            "A simulation in the service cannot load custom policies.", next_step="use `rmcs simulate` for them"
        )
    for name in nodes:
        runtime.check_cluster(name)
    known = {one.name: _size(runtime, one.name) for one in runtime.config.clusters}
    sizes = {name: size for name, size in {**known, **nodes}.items() if size is not None}
    clusters = [
        one.model_dump(mode="json", include={"name", "prefer", "weight", "tags", "max_running_jobs", "max_in_flight"})
        | {"dashboard": "http://simulated:8265"}
        for one in runtime.config.clusters
        if one.name in sizes
    ]
    now = runtime.config.settings.model_dump(mode="json", exclude_unset=True)
    return {
        "config": {"settings": {**now, **settings}, "clusters": clusters},
        "nodes": sizes,
        "synthetic": synthetic,
        "seed": seed,
    }


def _mapping(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key, {})
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{key} is {str(value)[:100]!r}.", next_step="send a JSON object")
    return value


def _size(runtime: ServiceRuntime, name: str) -> str | None:
    """The nodes of the last snapshot; None if there is none."""
    snapshot = runtime.machine.registry.latest_snapshot(name)
    if snapshot is None or not snapshot.nodes:
        return None
    sizes = [
        {what: one.total[what] for what in ("CPU", "GPU", "memory") if one.total.get(what)} for one in snapshot.nodes
    ]
    return "+".join("{" + ",".join(f"{what}:{amount:.0f}" for what, amount in one.items()) + "}" for one in sizes)

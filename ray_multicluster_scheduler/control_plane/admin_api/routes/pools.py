"""Routes of pools: quota and use, create, change, delete, and apply a whole list."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.control_plane.admin_api.access.audit import record_action
from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import pools_shown
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Rule, caller_of
from ray_multicluster_scheduler.control_plane.admin_api.http.problems import JsonResponse
from ray_multicluster_scheduler.control_plane.admin_api.routes.request_parsing import check_fields, json_of, runtime_of
from ray_multicluster_scheduler.control_plane.admin_api.schemas import pools as docs
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import described
from ray_multicluster_scheduler.control_plane.config.validation_errors import did_you_mean, pools_from
from ray_multicluster_scheduler.control_plane.runtime.pools import definition_of, pool_of, pool_rows
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.lifecycle.events import PoolChanged, PoolDeleted
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, check_cohorts

router = APIRouter(prefix="/api/v1/pools", tags=["pools"])
MAX_POOLS = 1_000
_SOURCE = "the request"


@router.get("", **described(Rule.SEE, docs.Pools))
async def pools(request: Request) -> Response:
    """All pools: definition, quota and use, and numbers of items. A submitter sees those that it may use."""
    caller, rows = caller_of(request), pool_rows(runtime_of(request).machine)
    return JsonResponse({"pools": pools_shown(rows.values(), caller)})


@router.put("", **described(Rule.ADMINISTER, docs.AppliedPools, docs.ApplyPools))
async def apply(request: Request) -> Response:
    """Create and change all pools of a list, durably. Others stay as they are, or with ``prune`` are deleted."""
    body, runtime = await json_of(request), runtime_of(request)
    check_fields(body, docs.ApplyPools.model_fields, "The request")
    rows, prune = body.get("pools"), body.get("prune", False)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not isinstance(prune, bool):
        raise ConfigurationError("The request has no list of pools.", next_step='send {"pools": [{"name": …}]}')
    before, wanted = _pools(runtime), _checked(runtime, rows)
    after = {pool.name: pool for pool in wanted}
    done = {
        "created": [name for name in after if name not in before],
        "changed": [name for name, pool in after.items() if name in before and pool != before[name]],
        "unchanged": [name for name, pool in after.items() if pool == before.get(name)],
    }
    gone = [name for name in before if prune and name not in after]
    await _change(runtime, wanted, gone)
    left = _pools(runtime)
    done["deleted"] = [name for name in gone if name not in left]
    done["draining"] = [name for name in gone if name in left]
    await record_action(request, "apply", "pools", {key: ", ".join(names) for key, names in done.items()})
    return JsonResponse(done)


@router.get("/{name}", **described(Rule.SEE, docs.Pool))
async def one_pool(request: Request, name: str) -> Response:
    """One pool."""
    shown = {
        row["name"]: row for row in pools_shown(pool_rows(runtime_of(request).machine).values(), caller_of(request))
    }
    if name not in shown:
        raise _unknown(name, shown)
    return JsonResponse(shown[name])


@router.put("/{name}", **described(Rule.ADMINISTER, docs.Pool, docs.PoolValues))
async def replace_pool(request: Request, name: str) -> Response:
    """Create a pool, or replace the one of this name, durably. Keys that are not given have their defaults. Running
    items continue, even above a lowered quota. One that is being deleted stays."""
    return await _set(request, name, await json_of(request))


@router.patch("/{name}", **described(Rule.ADMINISTER, docs.Pool, docs.PoolValues))
async def change_pool(request: Request, name: str) -> Response:
    """Change some keys of a pool, durably; the others stay as they are."""
    body = await json_of(request)
    before = _known(runtime_of(request), name)
    kind = {"quota", "cluster_quota"} & body.keys()
    values = {key: value for key, value in definition_of(before).items() if not kind or not key.endswith("quota")}
    return await _set(request, name, {**values, **body}, draining=before.draining)


@router.delete("/{name}", **described(Rule.ADMINISTER, docs.DeletedPool))
async def delete(request: Request, name: str, drain: bool = False) -> Response:
    """Delete a pool, durably. One with unfinished items is refused; with ``drain`` it accepts nothing new, and is
    deleted when they have ended. A configured pool stays deleted until it is created again."""
    runtime = runtime_of(request)
    _known(runtime, name)
    unfinished = runtime.machine.pools.unfinished[name]
    if unfinished and not drain:
        raise SchedulerError(
            f"The pool {name} has {unfinished} unfinished item{'' if unfinished == 1 else 's'}.",
            next_step="cancel them, or delete it with drain=true (rmcs pool delete --drain), which lets them end",
        )
    await _change(runtime, (), (name,))
    await record_action(request, "delete", f"pool {name}", {"drain": drain})
    answer = {
        "name": name,
        "deleted": name not in _pools(runtime),
        "unfinished": runtime.machine.pools.unfinished[name],
    }
    return JsonResponse(answer)


async def _set(request: Request, name: str, values: dict[str, Any], *, draining: bool = False) -> Response:
    runtime = runtime_of(request)
    if values.get("name", name) != name:
        raise ConfigurationError("A pool cannot be renamed.", next_step="create another one, and delete this one")
    (pool,) = _checked(runtime, [{**values, "name": name}])
    await _change(runtime, (replace(pool, draining=draining),), ())
    row = pool_rows(runtime.machine).get(name)
    await record_action(request, "set", f"pool {name}", {key: str(value) for key, value in values.items()})
    if row is None:  # it was the same before, and is deleted by now
        raise _unknown(name, ())
    return JsonResponse(row)


async def _change(runtime: ServiceRuntime, wanted: Sequence[Pool], gone: Collection[str]) -> None:
    """Delete and set pools, durably. Raises ConfigurationError if they cannot be together, SchedulerError if another
    request was faster."""
    before = _pools(runtime)
    left = {name: pool for name, pool in before.items() if name not in gone or runtime.machine.pools.unfinished[name]}
    after = {**left, **{pool.name: pool for pool in wanted}}
    if len(after) > max(MAX_POOLS, len(before)):
        raise _too_many(len(after))
    check_cohorts(after.values())
    changed = [pool for pool in wanted if pool != before.get(pool.name)]
    for name in gone:
        runtime.post_user_event(PoolDeleted(name))
    for pool in changed:  # together they fit, one by one they may not: so they leave their cohorts first
        other = before.get(pool.name)
        if other is not None and (other.cohort, bool(other.place_quota)) != (pool.cohort, bool(pool.place_quota)):
            runtime.post_user_event(PoolChanged(replace(pool, cohort=None, reclaim="never")))
    for pool in changed:
        runtime.post_user_event(PoolChanged(pool))
    await runtime.until_durable()
    now = _pools(runtime)
    for pool in changed:
        if now.get(pool.name) != pool:
            raise SchedulerError(
                f"The pool {pool.name} was changed by another request at the same time.", next_step="repeat the request"
            )


def _too_many(count: int) -> ConfigurationError:
    return ConfigurationError(f"There would be {count:,} pools.", next_step=f"use at most {MAX_POOLS:,}")


def _checked(runtime: ServiceRuntime, rows: Sequence[dict[str, Any]]) -> list[Pool]:
    if len(rows) > MAX_POOLS:
        raise _too_many(len(rows))
    return [pool_of(one) for one in pools_from(rows, _SOURCE, runtime.machine.registry.names())]


def _pools(runtime: ServiceRuntime) -> Mapping[str, Pool]:
    return runtime.machine.pools.ledger.pools


def _known(runtime: ServiceRuntime, name: str) -> Pool:
    pools = _pools(runtime)
    if name not in pools:
        raise _unknown(name, pools)
    return pools[name]


def _unknown(name: str, known: Collection[str]) -> UnknownItemError:
    message = f"There is no pool {name[:100]!r}{did_you_mean(name, known)}."
    return UnknownItemError(message, next_step="see `rmcs pool list` (GET /api/v1/pools)")

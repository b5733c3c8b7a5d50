"""Every route of the OpenAPI document × everybody who may ask: let in, 401 or 403, as the route's rule says.

A route without a rule fails here, and so does one without an example of how to ask it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import RULE, Role, Rule
from ray_multicluster_scheduler.control_plane.admin_api.http.app import create_app
from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ARGUMENTS, ActorService, a_call, an_actor
from tests.unit.service.http_service import body
from tests.unit.service.service_plane import BLOBS, F, ServicePlane, a_job, a_task


class Example(NamedTuple):
    """How a route is asked. ``of`` is the kind of item that it is about, whose id stands for ``{id}`` in ``path`` and
    ``body``. ``others``: the status for another user's item, as for an unknown one; 200 where
    the answer itself says no."""

    path: str
    body: Any = None
    of: str | None = None
    others: int = 404


_ITEM = "/api/v1/items/{id}"
EXAMPLES = {
    "GET /healthz": Example("/healthz"),
    "GET /readyz": Example("/readyz"),
    "POST /api/v1/session": Example("/api/v1/session"),
    "DELETE /api/v1/session": Example("/api/v1/session"),
    "POST /api/v1/ticket": Example("/api/v1/ticket"),
    "GET /api/v1/tokens": Example("/api/v1/tokens"),
    "POST /api/v1/tokens": Example("/api/v1/tokens", {"user": "x", "roles": ["viewer"]}),
    "DELETE /api/v1/tokens/{token_id}": Example("/api/v1/tokens/none"),
    "GET /api/v1/fleet": Example("/api/v1/fleet"),
    "GET /api/v1/clusters": Example("/api/v1/clusters"),
    "GET /api/v1/nodes": Example("/api/v1/nodes"),
    "GET /api/v1/clusters/{name}": Example("/api/v1/clusters/mac"),
    "GET /api/v1/clusters/{name}/drained": Example("/api/v1/clusters/mac/drained"),
    "POST /api/v1/clusters/{name}/cordon": Example("/api/v1/clusters/mac/cordon", {}),
    "POST /api/v1/clusters/{name}/uncordon": Example("/api/v1/clusters/mac/uncordon", {}),
    "POST /api/v1/clusters/{name}/declare-dead": Example("/api/v1/clusters/mac/declare-dead", {}),
    "POST /api/v1/queue/{what}/{name}/pause": Example("/api/v1/queue/owner/nobody/pause", {}),
    "POST /api/v1/queue/{what}/{name}/resume": Example("/api/v1/queue/owner/nobody/resume", {}),
    "POST /api/v1/plan": Example("/api/v1/plan", {"task": a_job("planned").to_dict()}),
    "GET /api/v1/trace": Example("/api/v1/trace"),
    "GET /api/v1/jobs": Example("/api/v1/jobs"),
    "GET /api/v1/jobs/{job_id}": Example("/api/v1/jobs/{id}", of="job"),
    "POST /api/v1/items": Example("/api/v1/items", {**body(a_task("{id}"))}, of="task", others=403),
    "POST /api/v1/items/batch": Example(
        "/api/v1/items/batch",
        {"items": [{"task": a_task("{id}").to_dict()}], "blobs": wire.bytes_to_wire(BLOBS)},
        "task",
        others=200,
    ),
    "GET /api/v1/items": Example("/api/v1/items"),
    "GET /api/v1/items/{item_id}": Example(_ITEM, of="task"),
    "POST /api/v1/wait": Example("/api/v1/wait", {"client": "c", "add": ["{id}"], "timeout": 0}, "task", others=200),
    "POST /api/v1/items/{item_id}/cancel": Example(f"{_ITEM}/cancel", {}, "task"),
    "POST /api/v1/items/{item_id}/hold": Example(f"{_ITEM}/hold", {}, "task"),
    "POST /api/v1/items/{item_id}/release": Example(f"{_ITEM}/release", {}, "task"),
    "POST /api/v1/items/{item_id}/priority": Example(f"{_ITEM}/priority", {"priority": 1}, "task"),
    "GET /api/v1/items/{item_id}/explain": Example(f"{_ITEM}/explain", of="task"),
    "GET /api/v1/items/{item_id}/preemption": Example(f"{_ITEM}/preemption", of="task"),
    "GET /api/v1/items/{item_id}/result": Example(f"{_ITEM}/result", of="task"),
    "GET /api/v1/items/{item_id}/logs": Example(f"{_ITEM}/logs", of="task"),
    "GET /api/v1/actors": Example("/api/v1/actors"),
    "GET /api/v1/actor": Example("/api/v1/actor?name={id}", of="actor"),
    "POST /api/v1/calls": Example(
        "/api/v1/calls", {"client": "c", "calls": [a_call("call-of-{id}", "{id}")]}, "actor", others=200
    ),
    "POST /api/v1/calls/{call_id}/cancel": Example("/api/v1/calls/call-{id}/cancel", {}, "call", others=200),
    "GET /api/v1/calls/{call_id}/explain": Example("/api/v1/calls/call-{id}/explain", of="call"),
    "GET /api/v1/calls/{call_id}/result": Example("/api/v1/calls/call-{id}/result?client=me", of="call", others=404),
    "PUT /api/v1/blobs/{digest}": Example(f"/api/v1/blobs/{F}", b"f"),
    "GET /api/v1/blobs/{digest}": Example(f"/api/v1/blobs/{F}"),
    "GET /api/v1/openapi.json": Example("/api/v1/openapi.json"),
    "GET /api/v1/settings": Example("/api/v1/settings"),
    "GET /api/v1/log-level": Example("/api/v1/log-level"),
    "PUT /api/v1/log-level": Example("/api/v1/log-level", {"level": "WARNING"}),
    "GET /metrics": Example("/metrics"),
    "GET /api/v1/series": Example("/api/v1/series"),
    "POST /api/v1/simulate": Example("/api/v1/simulate", {"nonsense": 1}),
    "GET /api/v1/queue": Example("/api/v1/queue"),
    "GET /api/v1/pools": Example("/api/v1/pools"),
    "PUT /api/v1/pools": Example("/api/v1/pools", {"pools": []}),
    "GET /api/v1/pools/{name}": Example("/api/v1/pools/none"),
    "PUT /api/v1/pools/{name}": Example("/api/v1/pools/none", {"reclaim": "nobody"}),
    "PATCH /api/v1/pools/{name}": Example("/api/v1/pools/none", {}),
    "DELETE /api/v1/pools/{name}": Example("/api/v1/pools/none"),
    "GET /api/v1/owners": Example("/api/v1/owners"),
    "GET /api/v1/owners/{owner}": Example("/api/v1/owners/own", of="task", others=403),
    "PUT /api/v1/owners/{owner}": Example("/api/v1/owners/nobody", {"max_running": 1}),
    "DELETE /api/v1/owners/{owner}": Example("/api/v1/owners/nobody"),
    "DELETE /api/v1/items/{item_id}": Example(_ITEM, None, "task"),
    "POST /api/v1/items/{item_id}/retry": Example(f"{_ITEM}/retry", {}, "task"),
    "POST /api/v1/clusters/{name}/check": Example("/api/v1/clusters/mac/check", {}),
    "POST /api/v1/clusters/{name}/drain": Example("/api/v1/clusters/mac/drain", {"timeout": 0}),
    "POST /api/v1/clusters/apply": Example("/api/v1/clusters/apply", {}),
    "POST /api/v1/serving/ti/register": Example("/api/v1/serving/ti/register", {"host": "10.0.0.256", "port": 1}),
    "POST /api/v1/serving/ti/remove": Example("/api/v1/serving/ti/remove", {"ti_uuid": "none"}),
    "GET /api/v1/serving/models": Example("/api/v1/serving/models"),
    "POST /api/v1/serving/queue/submit": Example(
        "/api/v1/serving/queue/submit", {"model_name": "none", "task_input": 1}
    ),
    "POST /api/v1/serving/queue/submit_batch": Example(
        "/api/v1/serving/queue/submit_batch", {"model_name": "none", "tasks": []}
    ),
    "GET /api/v1/serving/queue/info": Example("/api/v1/serving/queue/info"),
    "GET /api/v1/serving/task/query": Example("/api/v1/serving/task/query?task_id={id}", of="inference"),
    "GET /api/v1/serving/task/explain": Example("/api/v1/serving/task/explain?task_id={id}", of="inference"),
    "GET /api/v1/serving/task/all_tasks": Example("/api/v1/serving/task/all_tasks"),
    "POST /api/v1/serving/task/clear": Example("/api/v1/serving/task/clear"),
    "POST /api/v1/serving/result/submit": Example(
        "/api/v1/serving/result/submit", {"task_id": "{id}", "instance_id": "none"}, of="inference"
    ),
    "POST /api/v1/serving/notify/task_complete": Example(
        "/api/v1/serving/notify/task_complete", {"task_id": "{id}", "instance_id": "none"}, of="inference"
    ),
    "GET /api/v1/serving/health": Example("/api/v1/serving/health"),
    "POST /api/v1/serving/scheduler/set": Example("/api/v1/serving/scheduler/set", {"name": "round_robin"}),
    "GET /api/v1/serving/v1/models": Example("/api/v1/serving/v1/models"),
    "GET /api/v1/serving/v1/models/{model_id}": Example("/api/v1/serving/v1/models/none"),
    "POST /api/v1/serving/v1/{path}": Example("/api/v1/serving/v1/chat/completions", {"model": "none"}),
    "POST /api/v1/serving/deployments": Example("/api/v1/serving/deployments", {"name": "none", "task": {}}),
    "GET /api/v1/serving/deployments": Example("/api/v1/serving/deployments"),
    "GET /api/v1/serving/deployments/{name}": Example("/api/v1/serving/deployments/none"),
    "PATCH /api/v1/serving/deployments/{name}": Example("/api/v1/serving/deployments/none", {"replicas": 1}),
    "DELETE /api/v1/serving/deployments/{name}": Example("/api/v1/serving/deployments/none"),
    "GET /api/v1/events": Example("/api/v1/events?types=nonsense"),  # one that is let in does not end
}
CALLERS = ("nobody", "bad", "expired", "viewer", "own", "other", "operator", "admin")
_ROLE = {"own": Role.SUBMITTER, "other": Role.SUBMITTER, "viewer": Role.VIEWER, "operator": Role.OPERATOR}


class Matrix(ActorService):
    """With a token for each of the callers. Items are of "own"."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, auth="token")
        self.tokens = {"nobody": "", "bad": f"{self.token[:-1]}{'1' if self.token[-1] == '0' else '0'}"}
        over_at = time.time() + 2
        self.tokens["expired"] = self.token_for("late", *Role, expires_at=over_at)
        for name in ("viewer", "own", "other", "operator"):
            self.tokens[name] = self.token_for(name, _ROLE[name])
        self.tokens["admin"] = self.token_for("admin", Role.ADMIN)
        self._numbers = itertools.count()
        until(lambda: time.time() > over_at)

    def item(self, kind: str) -> str:
        """A fresh one of "own"."""
        name = f"m{next(self._numbers)}"
        if kind == "inference":
            request = {"model_name": "none", "task_input": 1, "task_id": name}
            status, output = self.ask("POST", "/api/v1/serving/queue/submit", request, token=self.tokens["own"])
            assert status == 200, output
            return name
        wanted = {"task": lambda: a_task(name, 0, start_after=5e9), "job": lambda: a_job(name, start_after=5e9)}
        task = wanted.get(kind, lambda: an_actor(name, {"public_name": name}))()
        status, output = self.ask("POST", "/api/v1/items", body(task), token=self.tokens["own"])
        assert status == 200, output
        if kind == "call":
            blobs = wire.bytes_to_wire({digest_of(ARGUMENTS): ARGUMENTS})
            calls = {"client": "me", "calls": [a_call(f"call-{name}", name)], "blobs": blobs}
            reported = self.ask("POST", "/api/v1/calls", calls, token=self.tokens["own"])[1]
            assert reported["calls"] == [{"id": f"call-{name}"}], reported
        return name


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with Matrix(tmp_path_factory.mktemp("matrix") / "state") as one:
        yield one


def _routes() -> dict[str, str | None]:
    """Each route of the document with its rule. Nothing is served for it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, ServicePlane(Path(folder)) as plane:
        paths = create_app(plane.runtime, Access(None)).openapi()["paths"]
    return {
        f"{verb.upper()} {path}": about.get(RULE)
        for path, verbs in paths.items()
        for verb, about in verbs.items()
        if verb != "parameters"
    }


ROUTES = _routes()


def test_every_route_has_a_rule() -> None:
    assert [route for route, rule in ROUTES.items() if rule not in set(Rule)] == []


def test_every_route_has_an_example_here() -> None:
    assert set(ROUTES) == set(EXAMPLES), "say in EXAMPLES how a new route is asked"


def expected(rule: Rule, caller: str, example: Example) -> int:
    """200 stands for everything that is neither 401 nor 403: a request that is let in may still be nonsense."""
    if rule is Rule.OPEN:
        return 200
    if caller in ("nobody", "bad", "expired"):
        return 401
    role = Role.ADMIN if caller == "admin" else _ROLE[caller]
    if role not in rule.roles:
        return 403
    return example.others if caller == "other" and example.of is not None else 200


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("route", [one for one in EXAMPLES if one in ROUTES])
def test_route_admits_the_roles_of_its_rule(service: Matrix, route: str, caller: str) -> None:
    example, rule = EXAMPLES[route], Rule(ROUTES[route] or "")
    name = "" if example.of is None else service.item(example.of)
    status, output = service.ask(
        route.split(maxsplit=1)[0],
        example.path.replace("{id}", name),
        None if isinstance(example.body, bytes) else _with(example.body, name),
        data=example.body if isinstance(example.body, bytes) else None,
        token=service.tokens[caller],
    )
    wanted = expected(rule, caller, example)
    assert (status if status in (401, 403) or wanted == 404 else 200) == wanted, output
    assert status < 500, output
    if status in (401, 403):
        assert output["error"] == "NotAllowedError"
        assert output["next_step"]
        assert not any(token and token.rpartition("_")[2] in str(output) for token in service.tokens.values())
    if caller == "other" and wanted == 200 and example.of is not None:
        no = ("does not belong to other", "'status': 404", "UnknownItemError", "{'id': 'call-")
        assert any(one in str(output) for one in no), "the answer itself says no"


def _with(output: Any, name: str) -> Any:
    if isinstance(output, str):
        return output.replace("{id}", name)
    if isinstance(output, dict):
        return {key: _with(value, name) for key, value in output.items()}
    return [_with(one, name) for one in output] if isinstance(output, (list, tuple)) else output


def test_nothing_was_run_for_who_may_not(service: Matrix) -> None:
    assert {one.new.owner for one in service.plane.store.open_items()} <= {"own"}

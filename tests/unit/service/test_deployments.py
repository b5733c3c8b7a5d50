"""The routes of deployments: roles and owners, replicas as items of their owner, requests, and a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.deployments import RemoteDeployments
from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.store import Change
from tests.support.serving_instances import StubInstance
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ARGUMENTS, ActorService, an_actor

pytestmark = pytest.mark.usefixtures("leak_check")
P = "/api/v1/serving"
CODE = b"the pickled class"


class Boom:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return pytest.fail, ("the service unpickled a value",)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ActorService]:
    with ActorService(tmp_path / "state", auth="token", submission_interval_s=0) as one:
        yield one


def deploy(service: ActorService, token: str | None = None, **values: Any) -> tuple[int, Any]:
    token = token or service.token
    for data in (CODE, ARGUMENTS):
        assert service.ask("PUT", f"/api/v1/blobs/{digest_of(data)}", data=data, token=token)[0] == 200
    actor = an_actor(values.pop("id", "template")).to_dict()
    task = {**actor, "function_digest": digest_of(CODE), "arguments_digest": digest_of(ARGUMENTS), "owner": ""}
    return service.ask("POST", f"{P}/deployments", {"name": "ocr", "task": task, **values}, token=token)


def status(service: ActorService, token: str | None = None) -> Any:
    return service.ask("GET", f"{P}/deployments/ocr", token=token)[1]


def request(service: ActorService) -> str:
    return str(service.post(f"{P}/queue/submit", {"model_name": "ocr", "task_input": {"page": 1}})["task_id"])


def answer(service: ActorService, number: int, value: object) -> None:
    call = service.sent(number)[number - 1]
    assert pickling.loads(call.arguments) == ((b'[{"page": 1}]',), {})
    service.answer(call.task_id, value)


def ended(service: ActorService, task_id: str) -> Any:
    until(lambda: service.get(f"{P}/task/query?task_id={task_id}")["task_status"] in {"completed", "failed"})
    return service.get(f"{P}/task/query?task_id={task_id}")


def running(service: ActorService, number: int) -> bool:
    found = status(service)
    healthy = sum(row["healthy"] for row in service.get(f"{P}/queue/info")["queues"])
    return bool(found["state"] == "RUNNING" and found["running"] == healthy == number)


def test_replicas_are_items_and_answer_requests(service: ActorService) -> None:
    code, made = deploy(service, replicas=2)
    assert (code, made["replicas"]) == (200, 2)
    until(lambda: running(service, 2))
    ids = {one["id"] for one in status(service)["instances"]}
    assert {service.get(f"/api/v1/items/{one}")["state"] for one in ids} == {"RUNNING"}
    task = request(service)
    answer(service, 1, json.dumps([{"result": {"text": "hello"}}]).encode())
    assert ended(service, task)["result"] == {"text": "hello"}
    task = request(service)
    for number in (2, 3, 4):
        answer(service, number, Boom())
    assert "The answer of a replica cannot be read" in ended(service, task)["error"]


def test_a_repeated_request_is_the_same_deployment_and_another_is_refused(service: ActorService) -> None:
    assert deploy(service)[0] == 200
    assert deploy(service)[0] == 200
    code, problem = deploy(service, id="another")
    assert (code, problem["error"]) == (422, "ConfigurationError")
    assert len(service.get(f"{P}/deployments")["deployments"]) == 1
    until(lambda: len(status(service)["instances"]) == 1)


def test_roles_and_owners(service: ActorService) -> None:
    ann, bob = (service.token_for(user, Role.SUBMITTER) for user in ("ann", "bob"))
    operator, viewer = service.token_for("op", Role.OPERATOR), service.token_for("view", Role.VIEWER)
    code, made = deploy(service, ann)
    assert (code, made["owner"]) == (200, "ann")
    until(lambda: running(service, 1))
    (replica,) = status(service)["instances"]
    assert service.get(f"/api/v1/items/{replica['id']}")["owner"] == "ann"
    path = f"{P}/deployments/ocr"
    assert service.ask("GET", path, token=bob)[0] == 404
    assert service.ask("GET", f"{P}/deployments", token=bob)[1] == {"deployments": []}
    assert service.ask("PATCH", path, {"replicas": 2}, token=bob)[0] == 404
    assert service.ask("DELETE", path, token=bob)[0] == 404
    assert service.ask("GET", path, token=viewer)[0] == 200
    assert service.ask("DELETE", path, token=viewer)[0] == 403
    assert service.ask("PATCH", path, {"replicas": 2}, token=ann)[0] == 200
    until(lambda: running(service, 2))
    assert service.ask("DELETE", path, token=operator)[0] == 200
    until(lambda: service.ask("GET", path, token=ann)[0] == 404)
    until(lambda: {row["state"] for row in service.get("/api/v1/actors")["actors"]} == {"CANCELLED"})


def test_a_submitter_cannot_take_over_a_model_of_others(service: ActorService) -> None:
    ann, bob = (service.token_for(user, Role.SUBMITTER) for user in ("ann", "bob"))
    stub = StubInstance()
    try:
        address = {"host": "127.0.0.1", "port": stub.port}
        service.post(f"{P}/ti/register", address)
        code, problem = deploy(service, bob)
        assert (code, problem["error"]) == (422, "ConfigurationError")
        assert f"'ocr' is served by other instances already: 127.0.0.1:{stub.port}" in problem["message"]
        assert "operator" in problem["next_step"]
        service.post(f"{P}/ti/remove", address)
    finally:
        stub.stop()
    assert deploy(service, ann)[0] == 200
    until(lambda: running(service, 1))
    for values in ({}, {"id": "another"}):
        assert deploy(service, bob, **values)[0] == 422
    assert [row["ti_uuid"] for row in service.get(f"{P}/queue/info")["queues"]] == [
        one["instance"] for one in status(service)["instances"]
    ]


@pytest.mark.parametrize("values", [{"name": "a/b"}, {"replicas": -1}, {"max_batch": 0}, {"concurrency": "x"}])
def test_wrong_options_are_refused(service: ActorService, values: dict[str, Any]) -> None:
    code, problem = deploy(service, **values)
    assert (code, problem["error"]) == (422, "ConfigurationError")
    assert next(iter(values)) in problem["message"]
    assert service.get(f"{P}/deployments") == {"deployments": []}


def test_payloads_must_be_the_callers(service: ActorService) -> None:
    ann, bob = (service.token_for(user, Role.SUBMITTER) for user in ("ann", "bob"))
    assert deploy(service, ann)[0] == 200
    task = {
        **an_actor("stolen").to_dict(),
        "function_digest": digest_of(CODE),
        "arguments_digest": digest_of(ARGUMENTS),
    }
    code, problem = service.ask("POST", f"{P}/deployments", {"name": "x", "task": {**task, "owner": ""}}, token=bob)
    assert (code, set(problem["missing"])) == (424, {digest_of(CODE), digest_of(ARGUMENTS)})


def test_the_next_process_finds_the_replicas(service: ActorService) -> None:
    deploy(service, replicas=2)
    until(lambda: running(service, 2))
    before = [one["id"] for one in status(service)["instances"]]
    service.restart()
    until(lambda: len(status(service)["instances"]) == 2)
    assert [one["id"] for one in status(service)["instances"]] == before


def test_one_that_cannot_be_read_does_not_stop_the_others(service: ActorService) -> None:
    deploy(service)
    deploy(service, name="other", id="other")
    until(lambda: [row["healthy"] for row in service.get(f"{P}/queue/info")["queues"]] == [True, True])
    broken = service.plane.store.settings("deployment/")["deployment/ocr"].replace(b'"options"', b'"choices"')
    service.plane.store.write(Change(settings={"deployment/ocr": broken})).result()
    service.restart()
    until(lambda: len(service.ask("GET", f"{P}/deployments/other")[1].get("instances", ())) == 1)
    code, problem = service.ask("GET", f"{P}/deployments/ocr")
    assert code == 422
    assert "The stored deployment 'ocr' cannot be continued: KeyError" in problem["message"]
    assert deploy(service, id="another")[1]["message"] == problem["message"]
    assert service.plane.store.settings("deployment/")["deployment/ocr"] == broken


def test_a_request_to_an_unknown_or_deleted_deployment_is_refused(service: ActorService) -> None:
    with UnifiedScheduler(address=service.address, token=service.token) as scheduler:
        runtime, _ = scheduler._started()
        assert isinstance(runtime, RemoteRuntime)
        deployments = RemoteDeployments(runtime)
        with pytest.raises(UnknownItemError, match="There is no deployment 'typo'"):
            deployments.start(deployments.request("typo", 1, {}, None)).result(60)
        deploy(service, replicas=0)
        pending = deployments.start(deployments.request("ocr", 1, {}, None))
        until(lambda: any(one["model_name"] == "ocr" for one in service.get(f"{P}/models")["models"]))
        service.ask("DELETE", f"{P}/deployments/ocr")
        with pytest.raises(UnknownItemError, match="There is no deployment 'ocr'"):
            pending.result(60)


def test_its_payloads_are_kept_until_it_is_deleted(service: ActorService) -> None:
    deploy(service)
    until(lambda: running(service, 1))
    (replica,) = (one["id"] for one in status(service)["instances"])
    service.ask("PATCH", f"{P}/deployments/ocr", {"replicas": 0})
    until(lambda: status(service)["instances"] == [])
    assert service.ask("DELETE", f"/api/v1/items/{replica}")[0] == 200
    store = service.plane.store
    assert [store.delete_unused_blobs() for _ in range(3)] == [0] * 3
    assert store.blob(digest_of(CODE)) == CODE
    service.ask("DELETE", f"{P}/deployments/ocr")
    until(lambda: service.ask("GET", f"{P}/deployments/ocr")[0] == 404)
    until(lambda: store.delete_unused_blobs() == 2)

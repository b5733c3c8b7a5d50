"""The serving routes in a service: users, roles, tokens, the networks of instances, events and metrics."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from websockets.sync.client import ClientConnection, connect

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.admin_api.http.app import create_app
from ray_multicluster_scheduler.control_plane.config.settings import Serving, Settings
from ray_multicluster_scheduler.control_plane.store import Change
from ray_multicluster_scheduler.control_plane.store.records import OperationRecord
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import Event, EventFilter
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_hub import EventHub
from ray_multicluster_scheduler.serving import RoundRobinStrategy, register_strategy
from tests.support.running_service import RunningService
from tests.support.serving_instances import OpenAIStub, StubInstance
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import ServicePlane

pytestmark = pytest.mark.usefixtures("leak_check")
P = "/api/v1/serving"
MESSAGES: list[Any] = [{"role": "user", "content": "one two three"}]
HOST = "127.0.0.1"
SECONDS = 60


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts services and instances; they end in reverse order."""
    started: list[Any] = []

    def start(kind: Callable[..., Any] = HttpService, *arguments: Any, **values: Any) -> Any:
        if kind is HttpService:
            values = {"auth": "token", **values}
            arguments = (tmp_path / "state",)
        started.append(kind(*arguments, **values))
        return started[-1]

    yield start
    for one in reversed(started):
        one.stop()


@pytest.fixture
def service(make: Callable[..., Any]) -> HttpService:
    one: HttpService = make()
    return one


@pytest.fixture
def users(service: HttpService) -> dict[str, str]:
    """Tokens by user; each user has the role of its name, ann and bob are submitters."""
    roles = {"ann": Role.SUBMITTER, "bob": Role.SUBMITTER, "viewer": Role.VIEWER, "operator": Role.OPERATOR}
    return {user: service.token_for(user, role) for user, role in roles.items()}


def register(service: HttpService, stub: Any, **values: Any) -> str:
    return str(service.post(f"{P}/ti/register", {"host": HOST, "port": stub.port, **values})["ti_uuid"])


def submit(service: HttpService, token: str, **values: Any) -> str:
    body = {"model_name": "ocr", "task_input": {"page": 1}, **values}
    status, answer = service.ask("POST", f"{P}/queue/submit", body, token=token)
    assert status == 200, answer
    return str(answer["task_id"])


def query(service: HttpService, task_id: str, token: str | None = None) -> tuple[int, Any]:
    return service.ask("GET", f"{P}/task/query?task_id={task_id}", token=token)


def finished(service: HttpService, task_id: str) -> Any:
    until(lambda: query(service, task_id)[1]["task_status"] in {"completed", "failed"}, SECONDS)
    return query(service, task_id)[1]


def client_of(service: HttpService, token: str, prefix: str = P) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.address}{prefix}/v1", api_key=token, max_retries=0, timeout=SECONDS)


def idle(service: HttpService) -> bool:
    return all(row["length"] == 0 for row in service.get(f"{P}/queue/info")["queues"])


def events_of(service: HttpService, token: str, path: str = f"{P}/ws/task_events", **query: Any) -> ClientConnection:
    words = "&".join(f"{name}={value}" for name, value in query.items())
    headers = {"Authorization": f"Bearer {token}"}
    return connect(f"ws://{HOST}:{service.port}{path}?{words}", additional_headers=headers)


def read(line: ClientConnection, number: int) -> list[Any]:
    return [json.loads(line.recv(timeout=SECONDS)) for _ in range(number)]


# ---- tasks and users


def test_a_task_goes_to_an_instance_and_is_explained(service: HttpService, make: Callable[..., Any]) -> None:
    uuid = register(service, make(StubInstance))
    task_id = submit(service, service.token)
    task = finished(service, task_id)
    assert (task["task_status"], task["scheduled_ti"]) == ("completed", uuid)
    explained = service.get(f"{P}/task/explain?task_id={task_id}")
    assert (explained["instance"], explained["decision"]["instance"]) == (uuid, uuid)
    (candidate,) = explained["decision"]["candidates"]
    assert (candidate["instance"], candidate["charged_tasks"]) == (uuid, 0)


def test_users_do_not_see_each_others_tasks(service: HttpService, users: dict[str, str]) -> None:
    task_id = submit(service, users["ann"], task_id="anns")
    assert [query(service, task_id, users[one])[0] for one in users] == [200, 404, 200, 200]
    for path in (f"{P}/task/explain?task_id=anns", f"{P}/task/query?task_id=none"):
        assert service.ask("GET", path, token=users["bob"])[1]["code"] == "UNKNOWN_ITEM"
    pages = {one: service.ask("GET", f"{P}/task/all_tasks", token=users[one])[1] for one in users}
    assert {one: [len(page["tasks"]), page["total_tasks"]] for one, page in pages.items()} == {
        "ann": [1, 1],
        "bob": [0, 0],
        "viewer": [1, 1],
        "operator": [1, 1],
    }
    taken = {"model_name": "ocr", "task_input": {"page": 1}, "task_id": "anns"}
    assert service.ask("POST", f"{P}/queue/submit", taken, token=users["bob"])[0] == 409
    assert service.ask("POST", f"{P}/queue/submit", taken, token=users["ann"])[0] == 200
    batch = {"model_name": "ocr", "tasks": [{"task_input": 1, "task_id": "anns"}, {"task_input": 2}]}
    assert service.ask("POST", f"{P}/queue/submit_batch", batch, token=users["bob"])[1]["status"] == "partial"


def test_the_tasks_of_a_batch_belong_to_the_user_who_submits_it(
    service: HttpService, users: dict[str, str], make: Callable[..., Any]
) -> None:
    batch = {"model_name": "ocr", "tasks": [{"task_input": 1, "task_id": "one"}, {"task_input": 2, "task_id": "two"}]}
    status, answer = service.ask("POST", f"{P}/queue/submit_batch", batch, token=users["ann"])
    assert (status, answer["status"]) == (200, "success")
    assert [query(service, "one", users[user])[0] for user in users] == [200, 404, 200, 200]
    again = {"model_name": "ocr", "task_input": 1, "task_id": "one"}
    assert service.ask("POST", f"{P}/queue/submit", again, token=users["ann"])[0] == 200
    assert service.ask("POST", f"{P}/queue/submit_batch", batch, token=users["ann"])[1]["status"] == "success"
    stub = make(StubInstance)
    stub.hold_tasks()
    register(service, stub)
    until(lambda: query(service, "one")[1]["task_status"] == "scheduled", SECONDS)
    report = {"task_id": "one", "instance_id": stub.address, "result": "read"}
    assert service.ask("POST", f"{P}/result/submit", report, token=users["bob"])[0] == 404
    assert service.ask("POST", f"{P}/result/submit", report, token=users["ann"])[0] == 200
    assert query(service, "one", users["ann"])[1]["result"] == "read"
    stub.release_tasks()


def test_only_operators_and_the_owner_report_results(
    service: HttpService, users: dict[str, str], make: Callable[..., Any]
) -> None:
    stub = make(StubInstance)
    stub.hold_tasks()
    register(service, stub)
    first, second = submit(service, users["ann"]), submit(service, users["ann"])
    until(lambda: len(stub.received) == 1, SECONDS)
    report = {"task_id": first, "instance_id": stub.address, "execution_time": 1, "result": "bob's"}
    assert service.ask("POST", f"{P}/result/submit", report, token=users["bob"])[0] == 404
    assert service.ask("POST", f"{P}/result/submit", report, token=users["viewer"])[0] == 403
    assert service.ask("POST", f"{P}/result/submit", {**report, "result": 1}, token=users["ann"])[0] == 200
    until(lambda: len(stub.received) == 2, SECONDS)
    again = {**report, "task_id": second, "result": 2}
    assert service.ask("POST", f"{P}/notify/task_complete", again, token=users["operator"])[0] == 200
    assert [finished(service, one)["result"] for one in (first, second)] == [1, 2]
    stub.release_tasks()


def test_an_instance_connects_with_the_token_of_an_operator(service: HttpService, users: dict[str, str]) -> None:
    silent = socket.create_server((HOST, 0))
    with silent:
        body = {"host": HOST, "port": silent.getsockname()[1], "model_name": "ocr"}
    service.post(f"{P}/ti/register", body)
    with pytest.raises(Exception, match="403"):
        events_of(service, users["ann"], f"{P}/ws/result_submit")
    with events_of(service, users["operator"], f"{P}/ws/result_submit") as line:
        line.send(json.dumps({"type": "register", "instance_id": f"{HOST}:{body['port']}"}))
        assert read(line, 1)[0]["type"] == "registered"
        until(lambda: service.get(f"{P}/health")["healthy_instances"] == 1, SECONDS)  # it does not answer HTTP
        task_id = submit(service, users["ann"])
        assert read(line, 1)[0]["task_id"] == task_id
        line.send(json.dumps({"type": "result", "task_id": task_id, "result": "x" * 2**20}))
        assert read(line, 1)[0]["success"]
        assert len(finished(service, task_id)["result"]) == 2**20
        token = next(one["id"] for one in service.get("/api/v1/tokens")["tokens"] if one["user"] == "operator")
        service.ask("DELETE", f"/api/v1/tokens/{token}")
        with pytest.raises(Exception, match="1008"):
            line.recv(timeout=SECONDS)


# ---- /v1


def test_the_openai_client_works_with_a_token_that_no_instance_gets(
    service: HttpService, users: dict[str, str], make: Callable[..., Any]
) -> None:
    stub = make(OpenAIStub)
    uuid = register(service, stub, kind="openai")
    with client_of(service, users["ann"]) as client:
        assert [one.id for one in client.models.list()] == ["small-llm"]
        assert client.models.retrieve("small-llm").id == "small-llm"
        raw = client.chat.completions.with_raw_response.create(
            model="small-llm", messages=MESSAGES, extra_headers={"Cookie": "rmcs_session=secret", "x-own": "kept"}
        )
        assert raw.parse().choices[0].message.content == "three two one"
        assert raw.headers["x-rmcs-instance"] == uuid
        path = f"{P}/task/explain?task_id={raw.headers['x-rmcs-task-id']}"
        assert service.ask("GET", path, token=users["ann"])[1]["instance"] == uuid
        assert service.ask("GET", path, token=users["bob"])[0] == 404
        stream = client.chat.completions.create(model="small-llm", messages=MESSAGES, stream=True)
        assert [chunk.choices[0].delta.content for chunk in stream] == ["three ", "two ", "one "]
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="none", messages=MESSAGES)
        assert unknown.value.code == "UNKNOWN_ITEM"
    assert stub.headers[0]["x-own"] == "kept"
    assert not any(name in headers for headers in stub.headers for name in ("authorization", "cookie"))
    assert users["ann"] not in str(stub.headers)


def test_a_stream_that_its_client_leaves_is_cancelled(
    service: HttpService, users: dict[str, str], make: Callable[..., Any]
) -> None:
    stub = make(OpenAIStub, seconds=0.2)
    register(service, stub, kind="openai")
    long: list[Any] = [{"role": "user", "content": "word " * 500}]
    with client_of(service, users["ann"]) as client:
        with client.chat.completions.create(model="small-llm", messages=long, stream=True) as stream:
            next(iter(stream))
        until(lambda: stub.cancelled == 1, SECONDS)
        until(lambda: idle(service), SECONDS)


def test_tokens_decide_who_may_use_v1(service: HttpService, users: dict[str, str]) -> None:
    body = {"model": "small-llm", "messages": MESSAGES}
    for token, status in (("", 401), ("rmcs_foreign_token", 401), (users["viewer"], 403), (users["ann"], 404)):
        answer = service.ask("POST", f"{P}/v1/chat/completions", body, token=token)
        assert answer[0] == status, answer
    with client_of(service, "foreign") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


# ---- settings


def test_instances_are_called_within_the_networks_of_allow(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, service = make(StubInstance), make(serving={"allow": ["10.0.0.0/8", "127.0.0.1"]})
    names = {"moves.test": [HOST], "partly.test": ["10.0.0.1", "192.0.2.1"], "mapped.test": ["::ffff:192.0.2.1"]}
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host not in names:
            return real(host, port, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for host in ("192.0.2.1", "::1", "partly.test", "mapped.test"):
        status, answer = service.ask("POST", f"{P}/ti/register", {"host": host, "port": 1})
        assert (status, "serving.allow" in answer["next_step"]) == (403, True), answer
    for host in ("no host", "a" * 200, "127.0.0.1/x", "x@127.0.0.1"):
        assert service.ask("POST", f"{P}/ti/register", {"host": host, "port": 1})[0] == 422
    answer = service.post(f"{P}/ti/register", {"host": "moves.test", "port": stub.port})
    assert answer["message"] == "registered"
    names["moves.test"] = ["192.0.2.1"]  # the name resolves to another address now; the checked one is used
    assert finished(service, submit(service, service.token))["task_status"] == "completed"
    assert service.post(f"{P}/ti/remove", {"host": "moves.test", "port": stub.port})["ti_uuid"] == answer["ti_uuid"]


def test_legacy_routes_serve_the_bare_paths(make: Callable[..., Any], tmp_path: Path) -> None:
    llm, service = make(OpenAIStub), make(serving={"legacy_routes": True})
    body = {"host": HOST, "port": llm.port, "kind": "openai"}
    assert service.ask("POST", "/ti/register", body, token="")[0] == 401
    service.post("/ti/register", body)
    task = service.post("/queue/submit", {"model_name": "small-llm", "task_input": {"messages": MESSAGES}})
    assert finished(service, task["task_id"])["task_status"] == "completed"
    with client_of(service, service.token, prefix="") as client:
        assert client.chat.completions.create(model="small-llm", messages=MESSAGES).choices
    with events_of(service, service.token, "/ws/task_events", since=0) as line:
        assert read(line, 1)[0]["id"] == task["task_id"]
    assert "/queue/submit" in service.get("/api/v1/openapi.json")["paths"]


def test_bare_paths_are_unknown_without_legacy_routes(service: HttpService) -> None:
    for path in ("/queue/submit", "/v1/chat/completions", "/ti/register"):
        assert service.ask("POST", path, {"model": "x", "model_name": "x", "task_input": 1})[0] == 404
    assert service.ask("GET", "/queue/info")[0] == 404


def test_config_names_instances_and_strategies(make: Callable[..., Any], tmp_path: Path) -> None:
    stub = make(StubInstance)
    file = tmp_path / "serving.yaml"
    file.write_text(f"strategy: round_robin\ninstances: ['{stub.address}']\n")
    service = make(serving={"config": str(file)})
    until(lambda: service.get(f"{P}/models")["models"], SECONDS)
    (model,) = service.get(f"{P}/models")["models"]
    assert (model["model_name"], model["strategy"]) == ("ocr", "round_robin")


def test_what_was_set_and_what_the_config_dropped_outlive_a_restart(
    make: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stays, dropped, registered = make(StubInstance), make(StubInstance), make(StubInstance)
    file = tmp_path / "serving.yaml"
    file.write_text(f"strategy: round_robin\ninstances: ['{stays.address}', '{dropped.address}']\n")
    service = make(serving={"config": str(file)})
    uuid = register(service, registered)

    def addresses() -> set[str]:
        return {row["address"] for row in service.get(f"{P}/queue/info")["queues"]}

    until(lambda: addresses() == {stays.address, dropped.address, registered.address}, SECONDS)
    for body in ({"name": "power_of_two"}, {"name": "weighted", "model_name": "llm"}):
        service.post(f"{P}/scheduler/set", body)
    submit(service, service.token, model_name="llm")
    service.plane.store.write(Change(settings={"serving-strategy:other": b"gone"})).result()
    file.write_text(f"strategy: round_robin\ninstances: ['localhost:{stays.port}']\n")
    service.restart()
    assert addresses() == {stays.address, registered.address}
    assert register(service, registered) == uuid
    strategies = {one["model_name"]: one["strategy"] for one in service.get(f"{P}/models")["models"]}
    assert strategies == {"ocr": "power_of_two", "llm": "weighted"}
    assert "the strategy gone that was set for other is not used" in caplog.text


def test_models_show_the_registered_name_of_a_strategy(service: HttpService) -> None:
    class Own(RoundRobinStrategy):
        name = "another name"

    register_strategy("own-for-test-models", Own)
    service.post(f"{P}/scheduler/set", {"name": "own-for-test-models"})
    submit(service, service.token)
    (model,) = service.get(f"{P}/models")["models"]
    assert model["strategy"] == "own-for-test-models"


def test_a_service_process_routes_rests_and_ends_with_an_instance_and_an_open_stream(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    stub, llm = make(StubInstance), make(OpenAIStub, seconds=0.2)
    file, fleet = tmp_path / "serving.yaml", tmp_path / "clusters.yaml"
    llm_entry = f"{{host: {HOST}, port: {llm.port}, kind: openai}}"
    file.write_text(f"instances: ['{stub.address}', {llm_entry}]\n")
    fleet.write_text(
        f"settings: {{serving: {{config: '{file}'}}}}\nclusters: [{{name: quiet, dashboard: 'http://127.0.0.1:1'}}]\n"
    )
    with RunningService(fleet, tmp_path / "state") as service:
        client = openai.OpenAI(base_url=f"{service.address}{P}/v1", api_key=service.token, timeout=SECONDS)
        with client:
            until(lambda: len(list(client.models.list())) == 1, SECONDS)
            process = psutil.Process(service.process.pid)
            before = sum(process.cpu_times()[:2])
            time.sleep(3.0)
            assert sum(process.cpu_times()[:2]) - before < 0.6
            long: list[Any] = [{"role": "user", "content": "word " * 500}]
            stream = client.chat.completions.create(model="small-llm", messages=long, stream=True)
            next(iter(stream))
            assert service.stop() == 0
            until(lambda: llm.cancelled == 1, SECONDS)
    assert "Traceback" not in service.log.read_text()


def test_a_wrong_config_or_network_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text("instanzes: []\n")
    plane = ServicePlane(tmp_path / "state", serving={"config": str(file)})
    try:
        with pytest.raises(ConfigurationError, match="instanzes"):
            create_app(plane.runtime, Access(None))
    finally:
        plane.stop()
    with pytest.raises(ValueError, match="network"):
        Settings(serving=Serving(allow=("10.0.0.300/8",)))


def test_each_key_of_serving_has_a_test_here() -> None:
    source = Path(__file__).read_text()
    for key in Serving.model_fields:
        assert re.search(rf'serving={{"{key}"', source), key


# ---- events and metrics


def test_task_events_are_filtered_and_replayed(
    service: HttpService, users: dict[str, str], make: Callable[..., Any]
) -> None:
    register(service, make(StubInstance))
    with events_of(service, users["ann"], model="ocr") as line, events_of(service, users["bob"]) as foreign:
        task_id = submit(service, users["ann"])
        events = read(line, 3)
        assert [one["state"] for one in events] == ["queued", "scheduled", "completed"]
        assert {(one["type"], one["id"], one["model"], one["owner"]) for one in events} == {
            ("serving", task_id, "ocr", "ann")
        }
        bobs = submit(service, users["bob"], model_name="other")
        assert read(foreign, 1)[0]["id"] == bobs
    second = events[1]["number"]
    assert [one["number"] for one in events] == [second - 1, second, second + 1]
    for path, more in ((f"{P}/ws/task_events", {}), ("/api/v1/ws", {"types": "serving"})):
        with events_of(service, users["viewer"], path, since=second, **more) as line:
            assert [(one["id"], one["state"]) for one in read(line, 2)] == [(task_id, "completed"), (bobs, "queued")]
    with events_of(service, users["viewer"], since=0, id=bobs) as line:
        assert read(line, 1)[0]["number"] == second + 2
    with events_of(service, users["viewer"], since=second + 100) as line:
        assert read(line, 1)[0]["type"] == "reset"
    with events_of(service, users["viewer"], since=1) as line:
        assert read(line, 1)[0]["type"] == "missed"
    with events_of(service, users["viewer"], since="x") as line, pytest.raises(Exception, match="1008"):
        line.recv(timeout=SECONDS)


def test_task_events_and_those_of_items_come_in_one_stream(service: HttpService) -> None:
    with events_of(service, service.token, "/api/v1/ws", types="serving,action") as line:
        task_id = submit(service, service.token)
        service.post(f"{P}/task/clear")
        submit(service, service.token, task_id="later")
        first, action, later = read(line, 3)
    assert (first["type"], first["id"], later["id"]) == ("serving", task_id, "later")
    assert (action["type"], action["subject"]) == ("action", "finished tasks of serving")
    assert "number" not in first, "it has no place among the numbers of durable events"
    hub = service.plane.runtime.event_publisher.hub
    assert 0 < action["number"] <= hub.number == service.plane.store.last_event_number
    with events_of(service, service.token, "/api/v1/ws", types="serving,action", since=action["number"] - 1) as line:
        assert read(line, 1)[0]["number"] == action["number"]
        submit(service, service.token, task_id="last")
        assert read(line, 1)[0]["id"] == "last"
    with events_of(service, service.token, since=0) as line:
        until(lambda: len(hub) == 1)  # readers of both routes are counted, and limited, together
        numbers = [one["number"] for one in read(line, 3)]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_a_slow_reader_of_one_stream_hears_of_the_durable_events_that_it_missed() -> None:
    async def read_late() -> None:
        hub = EventHub(lambda _: ("", "", ""), 5)
        reader = hub.subscribe(EventFilter(types=frozenset({"serving", "action"})), after=5)
        action = OperationRecord("action", "subject", 0.0, "user", b"{}")
        flood = [Event("serving", {"id": str(number)}, number) for number in range(3_000)]
        for expected in (None, (6, 6), None):
            if expected:
                hub.publish(6, [action])
            for event in flood:
                hub.publish_serving(event)
            batch = await reader.take()
            assert (batch.missed, batch.events[-1].fields["id"]) == (expected, "2999")
        hub.publish(7, [action])
        hub.publish_serving(flood[0])
        assert [one.number for one in (await reader.take()).events] == [7, None]

    asyncio.run(read_late())


def test_an_event_reader_ends_with_its_token(service: HttpService, users: dict[str, str]) -> None:
    with events_of(service, users["viewer"]) as line:
        token = next(one["id"] for one in service.get("/api/v1/tokens")["tokens"] if one["user"] == "viewer")
        service.ask("DELETE", f"/api/v1/tokens/{token}")
        with pytest.raises(Exception, match="100"):
            line.recv(timeout=SECONDS)


def test_metrics_count_requests_and_show_instances(service: HttpService, make: Callable[..., Any]) -> None:
    stub = make(StubInstance)
    register(service, stub)
    for _ in range(3):
        finished(service, submit(service, service.token))
    submit(service, service.token, model_name="a name that a client made up")
    text = service.get("/metrics").decode()
    at = f'{{address="{stub.address}",model="ocr"}}'
    for line in (
        'rmcs_serving_requests_total{model="ocr",outcome="completed"} 3.0',
        'rmcs_serving_waiting{model="(no instance)"} 1.0',
        'rmcs_serving_healthy_instances{model="ocr"} 1.0',
        f"rmcs_serving_instance_up{at} 1.0",
        f"rmcs_serving_charged_seconds{at} 0.0",
    ):
        assert line in text
    for name in ("predictions_total", "prediction_error", "p90_coverage"):
        assert f"rmcs_serving_{name}{at}" in text
    assert 'rmcs_serving_overhead_seconds_total{model="ocr"}' in text
    assert "made up" not in text

"""Every route of the stand-alone scheduler, over real HTTP and WebSockets, as instances and clients use them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from ray_multicluster_scheduler.serving import api
from ray_multicluster_scheduler.serving.events import TaskEvents
from tests.support.serving_instances import StubInstance
from tests.support.serving_server import Server

Start = Callable[..., StubInstance]


def register(server: Server, stub: StubInstance, **values: Any) -> str:
    return str(server.ok("/ti/register", {"host": "127.0.0.1", "port": stub.port, **values})["ti_uuid"])


def test_register_submit_and_query(server: Server, instance: Start) -> None:
    stub = instance()
    answer = server.ok("/ti/register", {"host": "127.0.0.1", "port": stub.port, "model_name": "ocr"})
    assert (answer["status"], answer["message"]) == ("success", "registered")
    assert register(server, stub) == answer["ti_uuid"]
    submitted = server.ok("/queue/submit", {"model_name": "ocr", "task_input": {"page": 1}, "metadata": {}})
    assert (submitted["status"], submitted["scheduled_ti"]) == ("success", answer["ti_uuid"])
    task = server.result(submitted["task_id"])
    assert task["result"] == {"echo": {"page": 1}, "instance": stub.address}
    assert task["scheduled_ti"] == answer["ti_uuid"]
    assert abs(task["submit_time"] - time.time()) < 600
    assert server.ok("/health") == {"status": "healthy", "instances": 1, "healthy_instances": 1, "waiting_tasks": 0}
    (queue,) = server.ok("/queue/info?model_name=ocr")["queues"]
    assert (queue["length"], queue["waiting_time_expect"], queue["healthy"]) == (0, 0, True)
    assert server.ok("/queue/info?model_name=none")["queues"] == []


def test_tasks_without_an_instance_wait_for_one(server: Server, instance: Start) -> None:
    submitted = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})
    assert submitted["scheduled_ti"] == ""
    task = server.ok(f"/task/query?task_id={submitted['task_id']}")
    assert task["task_status"] == "queued"
    assert "no instance" in task["reason"]
    register(server, instance())
    assert server.result(submitted["task_id"])["task_status"] == "completed"


def test_an_instance_that_does_not_answer_is_registered_and_says_so(server: Server) -> None:
    answer = server.ok("/ti/register", {"host": "127.0.0.1", "port": 1, "model_name": "ocr"})
    assert "not used until it answers" in answer["message"]
    assert server.ok("/models")["models"] == [
        {
            "model_name": "ocr",
            "strategy": "shortest_queue",
            "instances": 1,
            "healthy": 0,
            "waiting": 0,
            "running": 0,
        }
    ]


def test_an_instance_whose_model_is_not_known_yet_is_listed(server: Server) -> None:
    uuid = server.ok("/ti/register", {"host": "127.0.0.1", "port": 1})["ti_uuid"]
    (queue,) = server.ok("/queue/info")["queues"]
    assert (queue["ti_uuid"], queue["model_name"], queue["healthy"]) == (uuid, "", False)
    assert server.ok("/health")["instances"] == 1
    assert server.ok("/models")["models"] == []


def test_a_batch_is_accepted_task_by_task(server: Server, instance: Start) -> None:
    register(server, instance())
    tasks = [{"task_input": 1, "task_id": "a"}, {"task_input": 2, "task_id": "a"}, {"task_input": 3}]
    answer = server.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": tasks})
    assert (answer["status"], answer["total_tasks"], answer["successful_tasks"], answer["failed_tasks"]) == (
        "partial",
        3,
        2,
        1,
    )
    assert [row["status"] for row in answer["results"]] == ["success", "error", "success"]
    assert "taken" in answer["results"][1]["error"]
    for row in (answer["results"][0], answer["results"][2]):
        server.result(row["task_id"])
    assert server.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": []})["status"] == "success"


def test_an_acknowledging_instance_reports_by_http(server: Server, instance: Start) -> None:
    stub = instance()
    stub.callback = server.url
    register(server, stub)
    submitted = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 7})
    assert server.result(submitted["task_id"])["result"]["echo"] == 7
    report = {"task_id": submitted["task_id"], "instance_id": stub.address, "execution_time": 1, "result": "again"}
    for route in ("/notify/task_complete", "/result/submit"):
        assert server.ok(route, report) == {"status": "success", "message": "was received before"}
    assert server.result(submitted["task_id"])["result"]["echo"] == 7


def test_lists_pages_and_clear(server: Server, instance: Start) -> None:
    register(server, instance())
    for page in range(5):
        server.result(
            server.ok("/queue/submit", {"model_name": "ocr", "task_input": page, "task_id": str(page)})["task_id"]
        )
    server.ok("/queue/submit", {"model_name": "none", "task_input": 1, "task_id": "waits"})
    first = server.ok("/task/all_tasks?limit=4")
    second = server.ok(f"/task/all_tasks?limit=4&after={first['next']}")
    assert [row["task_id"] for row in first["tasks"] + second["tasks"]] == ["0", "1", "2", "3", "4", "waits"]
    assert (first["total_tasks"], second["next"]) == (6, None)
    assert server.ok("/task/clear", {}) == {"status": "success", "cleared": 5}
    assert [row["task_id"] for row in server.ok("/task/all_tasks")["tasks"]] == ["waits"]


def test_the_strategy_is_switched(server: Server) -> None:
    assert server.ok("/scheduler/set", {"name": "round_robin"}) == {"status": "success", "message": "OK"}
    status, answer = server.call("/scheduler/set", {"name": "fastest"})
    assert status == 422
    assert "shortest_queue" in answer["detail"]


def test_removal(server: Server, instance: Start) -> None:
    stub = instance()
    uuid = register(server, stub)
    assert server.ok("/ti/remove", {"host": "127.0.0.1", "port": stub.port})["ti_uuid"] == uuid
    assert server.call("/ti/remove", {"ti_uuid": uuid})[0] == 404
    assert server.call("/ti/remove", {})[0] == 422


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/task/query?task_id=none", None, 404),
        ("/task/query", None, 422),
        ("/nowhere", None, 404),
        ("/queue/submit", b"{", 422),
        ("/queue/submit", b"[" * 100_000, 422),
        ("/queue/submit", b"\xff\xfe", 422),
        ("/queue/submit", {"task_input": 1}, 422),
        ("/queue/submit", {"model_name": "ocr", "task_input": 1, "metadata": 7}, 422),
        ("/queue/submit", {"model_name": "", "task_input": 1}, 422),
        ("/queue/submit", {"model_name": "ocr", "task_input": 1, "task_id": "x" * 1000}, 422),
        ("/queue/submit_batch", {"model_name": "ocr", "tasks": 1}, 422),
        ("/ti/register", {"host": "127.0.0.1", "port": 0}, 422),
        ("/ti/register", b"", 422),
        ("/result/submit", {"task_id": "none", "instance_id": "x"}, 404),
        ("/result/submit", {"instance_id": "x"}, 422),
        ("/queue/submit_batch", b"[" * 100_000, 422),
        ("/queue/submit_batch", b"\xff\xfe", 422),
        ("/queue/submit", b'{"model_name": "ocr", "task_input": NaN}', 422),
        ("/queue/submit", b'{"model_name": "ocr", "task_input": 1, "metadata": {"x": 1e999}}', 422),
        ("/queue/submit_batch", b'{"model_name": "ocr", "tasks": [{"task_input": "\\ud800"}]}', 422),
        ("/v1/chat/completions", b'{"model": "\\ud800", "max_tokens": NaN}', 404),
        ("/v1/chat/completions", b'{"model": "ocr", "max_tokens": 1%s}' % (b"0" * 400), 404),
        ("/task/all_tasks?after=1" + "0" * 40, None, 422),
        ("/task/all_tasks?limit=0", None, 422),
        ("/ti/register", {"host": "a/b", "port": 80}, 422),
        ("/ti/register", {"host": "[::1", "port": 80}, 422),
    ],
)
def test_bad_requests_are_answered_with_a_problem(server: Server, path: str, body: Any, status: int) -> None:
    found, problem = server.call(path, body)
    assert (found, problem["status"]) == (status, status)
    assert problem["detail"]
    assert problem["code"]


def test_an_id_that_is_taken_by_another_request_is_refused(server: Server) -> None:
    body = {"model_name": "ocr", "task_input": 1, "task_id": "mine"}
    assert server.ok("/queue/submit", body) == server.ok("/queue/submit", body)
    assert server.call("/queue/submit", {**body, "task_input": 2})[0] == 409


def test_a_result_of_an_instance_that_never_had_the_task_is_refused(server: Server) -> None:
    server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1, "task_id": "mine"})
    status, answer = server.call("/result/submit", {"task_id": "mine", "instance_id": "127.0.0.1:9", "result": 1})
    assert status == 409
    assert "never given" in answer["detail"]


def test_a_body_over_the_limit_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_BODY", 1000)
    assert server.call("/queue/submit", b"x" * 2000)[0] == 413
    assert server.call("/ti/register", b"x" * 2000)[0] == 413


def test_over_the_bound_clients_are_asked_to_retry(server: Server) -> None:
    server.scheduler.max_waiting = 1
    server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})
    assert server.call("/queue/submit", {"model_name": "ocr", "task_input": 1})[0] == 429


def test_pages_of_other_machines_are_refused(server: Server) -> None:
    assert server.call("/health", headers={"origin": "http://evil.example"})[0] == 403
    assert server.call("/health", headers={"origin": "http://localhost:3000"})[0] == 200
    assert server.call("/health", headers={"host": "evil.example"})[0] == 403


@pytest.mark.parametrize("number", [10**400, 10**40])
def test_huge_numbers_are_passed_on_and_are_no_features(server: Server, instance: Start, number: int) -> None:
    stub = instance()
    register(server, stub)
    for route, body in (
        ("/queue/submit", {"model_name": "ocr", "task_input": 1, "metadata": {"n": number}, "task_id": "a"}),
        (
            "/queue/submit_batch",
            {"model_name": "ocr", "tasks": [{"task_input": 1, "metadata": {"n": number}, "task_id": "b"}]},
        ),
    ):
        server.ok(route, body)
    assert [server.result(one)["task_status"] for one in "ab"] == ["completed", "completed"]
    assert stub.received[0]["metadata"] == {"n": number}


def test_a_request_without_a_content_type_is_answered(server: Server) -> None:
    for route, expected in (("/queue/submit", 200), ("/queue/submit_batch", 422), ("/ti/remove", 422)):
        body = {"model_name": "ocr", "task_input": 1}
        assert server.call(route, body, headers={"content-type": ""})[0] == expected


@pytest.mark.parametrize("task_id", ["a/b?c&d", "é✓", "\n", "\x00", "..", "%", "x" * 200])
def test_ids_may_have_odd_characters(server: Server, instance: Start, task_id: str) -> None:
    register(server, instance())
    server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1, "task_id": task_id})
    assert server.result(urllib.parse.quote(task_id, safe=""))["task_id"] == task_id


@pytest.mark.parametrize(
    "body", [b'{"result": NaN}', b'{"result": "\\ud800"}', b'{"result": %s}' % (b"[" * 253 + b"]" * 253)]
)
def test_a_strange_result_does_not_spoil_the_list_of_tasks(server: Server, instance: Start, body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    register(server, instance(handler=answer))
    task = server.result(server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"])
    assert task["task_status"] == ("completed" if b"NaN" in body else "failed")
    assert task["result"] is None
    assert server.ok("/task/all_tasks")["tasks"] == [task]


def test_many_slow_connections_delay_no_request(server: Server) -> None:
    """Half a request line, half a header, half a body, and a chunked body that never ends."""
    beginnings = [
        b"POST /queue",
        b"POST /queue/submit HTTP/1.1\r\nhost: localhost\r\nx: ",
        b"POST /queue/submit HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{",
        b"POST /queue/submit HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ]
    with contextlib.ExitStack() as connections:
        for number in range(100):
            one = connections.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.sendall(beginnings[number % 4])
        began = time.monotonic()
        for _ in range(20):
            server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})
        assert time.monotonic() - began < 30


def test_all_routes_are_in_the_openapi_document(server: Server) -> None:
    document = server.ok("/openapi.json")
    assert {"/ti/register", "/ti/remove", "/queue/submit", "/queue/submit_batch", "/queue/info", "/task/query"} <= set(
        document["paths"]
    )
    assert "QueueSubmitRequest" in document["components"]["schemas"]


# ---- instances over a WebSocket


def test_an_instance_gets_tasks_and_reports_over_one_socket(server: Server, instance: Start) -> None:
    stub = instance(replicas=2)
    uuid = register(server, stub)
    with server.socket() as connection:
        connection.send(json.dumps({"type": "register", "instance_id": stub.address}))
        assert json.loads(connection.recv(60)) == {"type": "registered", "instance_id": uuid}
        ids = [server.ok("/queue/submit", {"model_name": "ocr", "task_input": n})["task_id"] for n in range(2)]
        tasks = [json.loads(connection.recv(60)) for _ in range(2)]
        assert [task["task_id"] for task in tasks] == ids
        assert tasks[0] == {
            "type": "task",
            "task_id": ids[0],
            "model_name": "ocr",
            "task_input": 0,
            "metadata": {},
        }
        connection.send(json.dumps({"type": "ping"}))
        assert json.loads(connection.recv(60)) == {"type": "pong"}
        connection.send(json.dumps({"type": "task_ack", "task_id": ids[0], "success": True}))
        acknowledged = {"type": "ack", "task_id": ids[0], "success": True, "message": "received"}
        assert json.loads(connection.recv(60)) == acknowledged
        connection.send(json.dumps({"type": "task_ack", "task_id": "none"}))
        assert not json.loads(connection.recv(60))["success"]
        results = [{"task_id": one, "execution_time": 3.5, "result": {"n": one}} for one in ids]
        connection.send(json.dumps({"type": "result", **results[0]}))
        assert json.loads(connection.recv(60)) == {
            "type": "ack",
            "task_id": ids[0],
            "success": True,
            "message": "received",
        }
        connection.send(json.dumps({"type": "batch", "messages": [*results, {"task_id": "none"}]}))
        acks = [json.loads(connection.recv(60)) for _ in range(3)]
        assert [(ack["success"], ack["message"]) for ack in acks[:2]] == [
            (True, "was received before"),
            (True, "received"),
        ]
        assert not acks[2]["success"]
        assert [server.result(one)["result"] for one in ids] == [{"n": one} for one in ids]
        connection.send(json.dumps({"type": "dance"}))
        assert json.loads(connection.recv(60))["type"] == "error"
    assert stub.received == [], "nothing went by HTTP"
    again = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 5})["task_id"]
    assert server.result(again)["result"]["echo"] == 5, "after the socket is closed, tasks go by HTTP again"


def test_a_task_that_the_instance_refuses_goes_elsewhere(server: Server, instance: Start) -> None:
    first = instance()
    register(server, first)
    with server.socket() as connection:
        connection.send(json.dumps({"type": "register", "instance_id": first.address}))
        connection.recv(60)
        task = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
        connection.recv(60)
        second = instance()
        register(server, second)
        connection.send(json.dumps({"type": "task_ack", "task_id": task, "success": False, "message": "full"}))
        assert server.result(task)["result"]["instance"] == second.address


@pytest.mark.parametrize(
    "first",
    [
        b"bytes",
        '{"type": "register", "instance_id": "' + "é" * 100 + '"}',
        "[" * 100_000,
        "no json",
        "[]",
        '{"type": "result"}',
        '{"type": "register", "instance_id": "x:1"}',
    ],
)
def test_a_socket_that_does_not_register_is_closed(server: Server, first: str | bytes) -> None:
    with server.socket() as connection:
        connection.send(first)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


@contextlib.contextmanager
def registered(server: Server, stub: StubInstance) -> Iterator[ClientConnection]:
    with server.socket() as connection:
        connection.send(json.dumps({"type": "register", "instance_id": stub.address}))
        assert json.loads(connection.recv(60))["type"] == "registered"
        yield connection


def test_an_instance_whose_socket_closes_gets_its_task_again(server: Server, instance: Start) -> None:
    """It had not acknowledged the task."""
    stub = instance()
    register(server, stub)
    with registered(server, stub) as connection:
        task = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
        assert json.loads(connection.recv(60))["task_id"] == task
    assert server.result(task)["result"]["echo"] == 1, "by HTTP"


def test_of_two_sockets_of_an_instance_the_second_gets_the_tasks(server: Server, instance: Start) -> None:
    stub = instance(replicas=2)
    register(server, stub)
    with registered(server, stub) as second_last:
        first = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
        second_last.recv(60)
        with registered(server, stub) as last:
            second = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 2})["task_id"]
            assert json.loads(last.recv(60))["task_id"] == second
            for connection, task in ((last, first), (second_last, second)):
                connection.send(json.dumps({"type": "result", "task_id": task, "result": task}))
                assert json.loads(connection.recv(60))["success"], "either may report"
    assert [server.result(one)["result"] for one in (first, second)] == [first, second]


@pytest.mark.parametrize(
    "message",
    [b"\x00\xff", "x" * 20_000_000, '{"type": "batch", "messages": 7}', '{"type": {"a": []}}', "7", "", "[" * 100_000],
)
def test_strange_messages_end_the_socket_or_are_answered(
    server: Server, instance: Start, message: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stub = instance()
    register(server, stub)
    with registered(server, stub) as connection, contextlib.suppress(ConnectionClosed):
        connection.send(message)
        connection.send('{"type": "ping"}')
        while json.loads(connection.recv(60))["type"] != "pong":
            pass
    task = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
    assert server.result(task)["task_status"] == "completed"
    assert not [one for one in caplog.records if one.exc_info]


def test_a_web_page_of_another_machine_may_not_open_a_socket(server: Server) -> None:
    url = f"ws://127.0.0.1:{server.port}/ws/result_submit"
    with pytest.raises(InvalidStatus, match="403"), connect(url, origin=Origin("http://evil.example")):
        pass
    with connect(url, origin=Origin("http://localhost:3000")):
        pass


def test_a_silent_socket_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_REGISTER_WITHIN_S", 0.05)
    with server.socket() as connection, pytest.raises(ConnectionClosed):
        connection.recv(60)


# ---- the process


def test_the_module_serves_a_configuration_alone(instance: Start, tmp_path: Path) -> None:
    stub = instance()
    config = tmp_path / "config.yaml"
    config.write_text(f"instances: [{{host: 127.0.0.1, port: {stub.port}}}]")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ray_multicluster_scheduler.serving", "--config", str(config), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "Uvicorn running" in line:
                    break
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
                assert json.loads(answer.read())["healthy_instances"] == 1
        finally:
            process.terminate()
            process.communicate()
    assert process.returncode in {0, -15}


@pytest.mark.parametrize(
    ("content", "reason"), [("instance: []", "did you mean 'instances'"), ("strategy: fastest", "fastest")]
)
def test_a_wrong_configuration_ends_the_process_with_a_sentence(tmp_path: Path, content: str, reason: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(content)
    command = [sys.executable, "-m", "ray_multicluster_scheduler.serving", "--config", str(config), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_ends_the_process_with_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "ray_multicluster_scheduler.serving", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert f"127.0.0.1:{port} cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_events_explanation_and_metrics(server: Server, instance: Start) -> None:
    stub = instance()
    register(server, stub)
    address = f"ws://127.0.0.1:{server.port}/ws/task_events"
    with connect(f"{address}?model=ocr") as line:
        server.ok("/queue/submit", {"model_name": "other", "task_input": 1})
        task_id = server.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
        events = [json.loads(line.recv(timeout=60)) for _ in range(3)]
    assert [(one["id"], one["state"]) for one in events] == [
        (task_id, state) for state in ("queued", "scheduled", "completed")
    ]
    with connect(f"{address}?since=0&id={task_id}") as line:
        assert [json.loads(line.recv(timeout=60)) for _ in range(3)] == events
    (candidate,) = server.ok(f"/task/explain?task_id={task_id}")["decision"]["candidates"]
    assert (candidate["predicted_ms"], candidate["charged_tasks"]) == (None, 0)
    assert server.call("/task/explain?task_id=none")[0] == 404
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert 'rmcs_serving_requests_total{model="ocr",outcome="completed"} 1.0' in text
    assert f'rmcs_serving_instance_up{{address="{stub.address}",model="ocr"}} 1.0' in text


def test_replay_keeps_the_newest_and_reports_what_is_gone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    events = TaskEvents(server.scheduler)
    monkeypatch.setattr(events, "_kept", deque(maxlen=3))
    server._app.routes.state.serving_events = events
    for number in range(5):
        server.ok("/queue/submit", {"model_name": "ocr", "task_input": number, "task_id": str(number)})
    address = f"ws://127.0.0.1:{server.port}/ws/task_events"
    with connect(f"{address}?since=0") as line:
        missed, *kept = (json.loads(line.recv(timeout=60)) for _ in range(4))
    assert (missed["type"], missed["to"] - missed["from"]) == ("missed", 1)
    assert ([one["id"] for one in kept], kept[0]["number"]) == (["2", "3", "4"], missed["to"] + 1)

"""The protocol of the serving API against a real stand-alone process: every route as an instance and as a client, and
instances and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
import uvicorn
from aiohttp import web

from tests.integration.serving.conftest import ServingProcess
from tests.support.docs_blocks import ROOT
from tests.support.serving_instances import OpenAIStub, one_gigabyte

Start = Callable[..., Any]
MESSAGES: list[Any] = [{"role": "user", "content": "word " * 400}]


def eventually(check: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def address(stub: Any, **values: Any) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": stub.port, **values}


def charged(scheduler: ServingProcess) -> list[tuple[int, float, float]]:
    rows = scheduler.ok("/queue/info")["queues"]
    return [(row["length"], row["waiting_time_expect"], row["waiting_time_error"]) for row in rows]


def test_every_route_as_an_instance_and_as_a_client(scheduler: ServingProcess, instance: Start) -> None:
    # two instances register: the model of one is read from its /info, the other one reports by HTTP
    first, second = instance(), instance(replicas=2)
    second.callback = scheduler.url
    registered = scheduler.ok("/ti/register", address(first))
    assert registered == {"status": "success", "message": "registered", "ti_uuid": registered["ti_uuid"]}
    assert scheduler.ok("/ti/register", address(first))["ti_uuid"] == registered["ti_uuid"]
    fields = {"hardware": "a100", "software_name": "onnx", "software_version": "1", "concurrency": 2, "kind": "queue"}
    other = scheduler.ok("/ti/register", address(second, model_name="ocr", **fields))["ti_uuid"]
    (model,) = scheduler.ok("/models")["models"]
    assert (model["model_name"], model["instances"], model["healthy"]) == ("ocr", 2, 2)
    assert scheduler.ok("/health")["healthy_instances"] == 2

    # a client submits, one task and a batch
    task = {"model_name": "ocr", "task_input": {"page": 1}, "metadata": {"pixels": 900}, "task_id": "a"}
    answer = scheduler.ok("/queue/submit", task)
    assert (answer["status"], answer["task_id"]) == ("success", "a")
    assert answer["scheduled_ti"] in {registered["ti_uuid"], other}
    assert scheduler.ok("/queue/submit", task)["task_id"] == "a", "a repeat"
    assert scheduler.call("/queue/submit", {**task, "task_input": 2})[0] == 409
    tasks = [{"task_input": {"page": page}, "metadata": {}} for page in range(30)]
    batch = scheduler.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": tasks})
    assert (batch["status"], batch["total_tasks"], batch["successful_tasks"], batch["failed_tasks"]) == (
        "success",
        30,
        30,
        0,
    )
    assert [row["index"] for row in batch["results"]] == list(range(30))
    for index, row in enumerate(batch["results"]):
        found = scheduler.result(row["task_id"])
        assert (found["task_status"], found["result"]["echo"]) == ("completed", {"page": index})
        assert found["scheduled_ti"] in {registered["ti_uuid"], other}
    assert {one["instance"] for one in (scheduler.result(row["task_id"])["result"] for row in batch["results"])} == {
        first.address,
        second.address,
    }
    eventually(lambda: charged(scheduler) == [(0, 0, 0), (0, 0, 0)])

    # late and repeated reports, by both routes
    report = {"task_id": "a", "instance_id": second.address, "execution_time": 3, "result": "late"}
    for route in ("/result/submit", "/notify/task_complete"):
        assert scheduler.ok(route, report)["message"] == "was received before"
    assert scheduler.result("a")["result"]["echo"] == {"page": 1}
    assert scheduler.call("/task/query?task_id=unknown")[0] == 404

    # strategies, pages, clear, removal
    for name in ("round_robin", "weighted", "probabilistic", "power_of_two", "join_shortest_queue", "shortest_queue"):
        assert scheduler.ok("/scheduler/set", {"name": name, "model_name": "ocr"})["status"] == "success"
    page = scheduler.ok("/task/all_tasks?limit=20")
    assert (page["total_tasks"], len(page["tasks"]), page["next"]) == (31, 20, "20")
    assert scheduler.ok("/task/clear", {})["cleared"] == 31
    assert scheduler.ok("/ti/remove", {"ti_uuid": registered["ti_uuid"]})["ti_uuid"] == registered["ti_uuid"]
    assert scheduler.ok("/ti/remove", {**address(second), "drain": False})["ti_uuid"] == other
    assert scheduler.ok("/queue/info") == {"status": "success", "queues": []}
    assert scheduler.ok("/queue/submit", {**task, "task_id": "b"})["scheduled_ti"] == ""
    waiting = scheduler.ok("/task/query?task_id=b")
    assert (waiting["task_status"], waiting["scheduled_ti"]) == ("queued", "")
    assert abs(waiting["submit_time"] - time.time()) < 600


def test_an_instance_over_one_socket(scheduler: ServingProcess, instance: Start) -> None:
    stub = instance()
    scheduler.ok("/ti/register", address(stub, concurrency=3))
    with scheduler.socket() as connection:

        def call(message: dict[str, Any]) -> Any:
            connection.send(json.dumps(message))
            return json.loads(connection.recv(60))

        assert call({"type": "register", "instance_id": stub.address})["type"] == "registered"
        ids = [scheduler.ok("/queue/submit", {"model_name": "ocr", "task_input": n})["task_id"] for n in range(3)]
        tasks = [json.loads(connection.recv(60)) for _ in ids]
        assert [(one["type"], one["task_id"], one["task_input"]) for one in tasks] == [
            ("task", ids[n], n) for n in range(3)
        ]
        for one in ids:
            received = {"type": "ack", "task_id": one, "success": True, "message": "received"}
            assert call({"type": "task_ack", "task_id": one, "success": True}) == received
        assert not call({"type": "task_ack", "task_id": "unknown"})["success"]
        assert call({"type": "ping"}) == {"type": "pong"}
        results = [{"task_id": one, "execution_time": 2, "result": one} for one in ids]
        assert call({"type": "result", **results[0]}) == {
            "type": "ack",
            "task_id": ids[0],
            "success": True,
            "message": "received",
        }
        acknowledged = [call({"type": "batch", "messages": results[1:]}), json.loads(connection.recv(60))]
        assert [(one["task_id"], one["success"]) for one in acknowledged] == [(ids[1], True), (ids[2], True)]
    assert [scheduler.result(one)["result"] for one in ids] == ids
    assert stub.received == []
    assert charged(scheduler) == [(0, 0, 0)]


def test_the_openai_client_with_and_without_streaming_and_cancelled(scheduler: ServingProcess, instance: Start) -> None:
    stub = instance(kind=OpenAIStub, seconds=0.005)
    uuid = scheduler.ok("/ti/register", address(stub, kind="openai"))["ti_uuid"]
    with openai.OpenAI(base_url=f"{scheduler.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        assert [one.id for one in client.models.list()] == ["small-llm"]
        words: list[Any] = [{"role": "user", "content": "one two three"}]
        raw = client.chat.completions.with_raw_response.create(model="small-llm", messages=words)
        assert raw.parse().choices[0].message.content == "three two one"
        assert raw.headers["x-rmcs-instance"] == uuid
        assert float(raw.headers["x-rmcs-overhead-ms"]) >= 0
        parts = [
            part.choices[0].delta.content
            for part in client.chat.completions.create(model="small-llm", messages=words, stream=True)
        ]
        assert parts == ["three ", "two ", "one "]
        with client.chat.completions.create(model="small-llm", messages=MESSAGES, stream=True) as stream:
            next(iter(stream))
        eventually(lambda: stub.cancelled == 1)
        with pytest.raises(openai.InternalServerError) as shed:
            client.chat.completions.create(
                model="small-llm", messages=MESSAGES, extra_headers={"x-rmcs-deadline-ms": "0.001"}
            )
        assert (shed.value.status_code, shed.value.response.headers["retry-after"]) == (503, "1")
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="unknown", messages=words)
        assert client.embeddings.create(model="small-llm", input="abc").data[0].embedding == [3.0]
    eventually(lambda: charged(scheduler) == [(0, 0, 0)])


def test_an_answer_of_one_gigabyte_takes_bounded_memory(scheduler: ServingProcess, instance: Start) -> None:
    """A task fails; a pass-through is as slow as its client, which here reads a little and leaves."""
    large = instance(handler=one_gigabyte)
    scheduler.ok("/ti/register", address(large))
    task = {"model_name": "ocr", "task_input": 1, "metadata": {"idempotent": False}}
    found = scheduler.result(scheduler.ok("/queue/submit", task)["task_id"])
    assert found["task_status"] == "failed"
    assert "bytes" in found["error"]
    assert scheduler.memory() < 350
    before = scheduler.memory("VmRSS")
    stub = instance(kind=OpenAIStub)
    stub.gigabyte = True
    scheduler.ok("/ti/register", address(stub, kind="openai"))
    body = json.dumps({"model": "small-llm", "messages": MESSAGES}).encode()
    with socket.create_connection(("127.0.0.1", scheduler.port)) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        time.sleep(1)
        assert scheduler.memory("VmRSS") < before + 50
    eventually(lambda: charged(scheduler) == [(0, 0, 0), (0, 0, 0)])


def chunked(scheduler: ServingProcess, most: int) -> bytes:
    """Send a chunked body until there is an answer or ``most`` bytes were sent; the first bytes of the answer."""
    with socket.create_connection(("127.0.0.1", scheduler.port), timeout=60) as connection:
        connection.sendall(b"POST /queue/submit HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%s\r\n" % (2**20, b"x" * 2**20)
        for _ in range(most // 2**20):
            connection.sendall(piece)
        return connection.recv(100)


def test_bodies_are_bounded(scheduler: ServingProcess) -> None:
    assert scheduler.call("/queue/submit", b"x" * (64 * 2**20 + 1))[0] == 413
    assert scheduler.call("/v1/chat/completions", b"x" * (64 * 2**20 + 1))[0] == 413
    assert chunked(scheduler, 200 * 2**20).startswith(b"HTTP/1.1 413")
    assert scheduler.memory() < 350
    text = "x" * (64 * 2**20 - 100)
    assert scheduler.call("/queue/submit", {"model_name": "ocr", "task_input": text})[0] == 200


def test_ten_thousand_tasks_wait_for_an_instance(scheduler: ServingProcess, instance: Start) -> None:
    tasks = [{"task_input": page, "task_id": f"t{page}"} for page in range(10_000)]
    answer = scheduler.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": tasks})
    assert (answer["successful_tasks"], {row["scheduled_ti"] for row in answer["results"]}) == (10_000, {""})
    assert scheduler.ok("/health")["waiting_tasks"] == 10_000
    stub = instance(replicas=16)
    scheduler.ok("/ti/register", address(stub))
    eventually(lambda: scheduler.ok("/models")["models"][0]["waiting"] == 0)
    eventually(lambda: charged(scheduler) == [(0, 0, 0)])
    assert sorted(one["task_input"] for one in stub.received) == list(range(10_000))


def test_instances_that_flap_or_are_killed_lose_no_task(scheduler: ServingProcess, instance: Start) -> None:
    stays, flaps = instance(seconds=lambda task: 0.001), instance(seconds=lambda task: 0.001)
    for stub in (stays, flaps):
        scheduler.ok("/ti/register", address(stub))
    ids: list[str] = []
    for _ in range(6):
        tasks = [{"task_input": 1, "metadata": {"idempotent": True}} for _ in range(50)]
        rows = scheduler.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": tasks})["results"]
        ids += [row["task_id"] for row in rows]
        flaps.stop()
        flaps = instance(port=flaps.port)
        scheduler.ok("/ti/register", address(flaps))
    assert {scheduler.result(one)["task_status"] for one in ids} == {"completed"}
    eventually(lambda: charged(scheduler) == [(0, 0, 0), (0, 0, 0)])


def test_an_instance_that_hangs_while_its_info_answers_delays_no_others(
    scheduler: ServingProcess, instance: Start
) -> None:
    received: list[Any] = []

    async def hang(request: web.Request) -> web.StreamResponse:
        received.append(await request.json())
        await asyncio.Event().wait()
        raise AssertionError

    hangs, works = instance(handler=hang), instance()
    for stub in (hangs, works):
        scheduler.ok("/ti/register", address(stub))
    scheduler.ok("/scheduler/set", {"name": "round_robin", "model_name": "ocr"})
    tasks = [{"task_input": page} for page in range(2)]
    first = scheduler.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": tasks})["results"]
    eventually(lambda: len(received) == 1)
    stuck = received[0]["task_id"]
    assert stuck in [row["task_id"] for row in first]
    scheduler.ok("/scheduler/set", {"name": "shortest_queue", "model_name": "ocr"})
    tasks = [{"task_input": page} for page in range(100)]
    later = scheduler.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": tasks})["results"]
    ids = [row["task_id"] for row in first + later]
    assert {scheduler.result(one)["task_status"] for one in ids if one != stuck} == {"completed"}
    found = scheduler.ok(f"/task/query?task_id={stuck}")
    assert (found["task_status"], len(received)) == ("scheduled", 1)
    assert scheduler.ok("/health")["healthy_instances"] == 2


@pytest.mark.parametrize(
    ("replicas", "problem"),
    [
        (0, ""),
        (None, ""),
        (-3, "replicas_running"),
        ("many", "replicas_running"),
        ([2], "replicas_running"),
        (1e400, "no JSON"),
    ],
)
def test_an_instance_that_lies_about_its_replicas(
    scheduler: ServingProcess, instance: Start, replicas: Any, problem: str
) -> None:
    """It serves one request after another, or is not used and says why."""
    liar, honest = instance(replicas=1), instance(model="llm")
    liar.replicas = replicas
    scheduler.ok("/ti/register", address(honest))
    message = scheduler.ok("/ti/register", address(liar, model_name="ocr"))["message"]
    assert (message == "registered") == (not problem), message
    task_id = scheduler.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
    if not problem:
        assert scheduler.result(task_id)["task_status"] == "completed"
        assert liar.most_running == 1
    other = scheduler.ok("/queue/submit", {"model_name": "llm", "task_input": 1})["task_id"]
    assert scheduler.result(other)["task_status"] == "completed"


def test_an_instance_that_lies_about_its_model(scheduler: ServingProcess, instance: Start) -> None:
    """The registration says which model it serves; without a model it gets nothing until its answer has one."""
    liar, mute = instance(model="llm"), instance(model=["ocr"])
    assert scheduler.ok("/ti/register", address(liar, model_name="ocr"))["message"] == "registered"
    assert "model_type" in scheduler.ok("/ti/register", address(mute))["message"]
    (model,) = scheduler.ok("/models")["models"]
    assert (model["model_name"], model["instances"]) == ("ocr", 1)
    waits = scheduler.ok("/queue/submit", {"model_name": "llm", "task_input": 1})
    assert waits["scheduled_ti"] == ""
    runs = scheduler.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
    assert scheduler.result(runs)["result"]["instance"] == liar.address
    assert [one["model_name"] for one in liar.received] == ["ocr"]
    mute.model = "llm"
    assert scheduler.result(waits["task_id"])["result"]["instance"] == mute.address


def test_uvicorn_serves_the_application(alone: Callable[..., ServingProcess], instance: Start) -> None:
    scheduler, stub = alone("ray_multicluster_scheduler.serving.api:app", module="uvicorn"), instance()
    scheduler.ok("/ti/register", address(stub))
    task_id = scheduler.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})["task_id"]
    assert scheduler.result(task_id)["result"]["echo"] == 1
    assert scheduler.call("/queue/submit", {"model_name": "ocr"})[0] == 422


def test_the_application_behind_a_ray_serve_proxy_registers_like_others(scheduler: ServingProcess) -> None:
    """The FastAPI application of docs/serving.md, which `serve.ingress` takes; here without Ray."""
    (code,) = re.findall(r"```python\n(from fastapi .*?)```", (ROOT / "docs/serving.md").read_text(), re.DOTALL)
    lines = code.split("\n@serve.deployment")[0]
    names: dict[str, Any] = {}
    exec(compile(lines, "docs/serving.md", "exec"), names)  # the page is part of this repository
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(names["api"], log_config=None))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        port = listener.getsockname()[1]
        answer = scheduler.ok("/ti/register", {"host": "127.0.0.1", "port": port, "concurrency": 2})
        assert answer["message"] == "registered"
        task_id = scheduler.ok("/queue/submit", {"model_name": "ocr", "task_input": {"page": 1}})["task_id"]
        assert scheduler.result(task_id)["result"] == {"text": "the text of page 1"}
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_it_while_requests_run(
    scheduler: ServingProcess, instance: Start, number: signal.Signals, code: int
) -> None:
    """A stream, a request that waits for it, a task, and an instance that is connected."""
    llm, stub = instance(kind=OpenAIStub, seconds=0.1), instance()
    stub.hold_tasks()
    scheduler.ok("/ti/register", address(llm, kind="openai", concurrency=1))
    scheduler.ok("/ti/register", address(stub))
    scheduler.ok("/queue/submit", {"model_name": "ocr", "task_input": 1})
    ends: list[Exception] = []

    def stream() -> None:
        with openai.OpenAI(base_url=f"{scheduler.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
            try:
                list(client.chat.completions.create(model="small-llm", messages=MESSAGES, stream=True))
            except Exception as error:  # noqa: BLE001 # of several kinds
                ends.append(error)

    clients = [threading.Thread(target=stream) for _ in range(2)]
    with scheduler.socket() as connection:
        connection.send(json.dumps({"type": "register", "instance_id": stub.address}))
        connection.recv(60)
        for one in clients:
            one.start()
        eventually(lambda: llm.running == 1 == stub.running)
        eventually(lambda: scheduler.ok("/queue/info")["queues"][0]["length"] == 2)
        began = time.monotonic()
        assert scheduler.end(number) == code
    for one in clients:
        one.join()
    assert time.monotonic() - began < 30
    assert len(ends) == 2
    assert "they are lost" in scheduler.output

"""/v1 requests through the scheduler: by the `openai` package, and by raw HTTP where bytes and connections matter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from ray_multicluster_scheduler.serving import task_tracker
from ray_multicluster_scheduler.serving.router.ledger import Task
from ray_multicluster_scheduler.serving.router.passthrough import describe_request
from tests.support.serving_instances import OpenAIStub, StubInstance
from tests.support.serving_server import Server

StartLLM = Callable[..., OpenAIStub]
MESSAGES: list[Any] = [{"role": "user", "content": "one two three"}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0, timeout=60) as one:
        yield one


def register(server: Server, stub: OpenAIStub, **values: Any) -> str:
    body = {"host": "127.0.0.1", "port": stub.port, "kind": "openai", **values}
    return str(server.ok("/ti/register", body)["ti_uuid"])


def eventually(check: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def idle(server: Server) -> bool:
    return all(row["length"] == 0 for row in server.ok("/queue/info")["queues"])


def test_the_openai_client_works_unchanged(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    stub = llm()
    uuid = register(server, stub)
    raw = client.chat.completions.with_raw_response.create(model="small-llm", messages=MESSAGES)
    answer = raw.parse()
    assert answer.choices[0].message.content == "three two one"
    assert raw.headers["x-rmcs-instance"] == uuid
    assert raw.headers["x-rmcs-task-id"]
    assert float(raw.headers["x-rmcs-overhead-ms"]) >= 0
    assert [one.id for one in client.models.list()] == ["small-llm"]
    assert client.embeddings.create(model="small-llm", input="abc").data[0].embedding == [3.0]
    assert stub.headers[0]["authorization"] == "Bearer secret"
    eventually(lambda: idle(server))
    assert server.scheduler.statistics()["times"]["small-llm"][uuid]["total"]["count"] == 2


def test_a_stream_arrives_as_it_is_made(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    stub = llm(seconds=0.05)
    register(server, stub)
    times, words = [], []
    for chunk in client.chat.completions.create(model="small-llm", messages=MESSAGES, stream=True):
        times.append(time.monotonic())
        words.append(chunk.choices[0].delta.content)
    assert words == ["three ", "two ", "one "]
    assert times[-1] - times[0] > 0.05, "not all at once at the end"


def test_a_stream_is_passed_byte_for_byte(server: Server, llm: StartLLM) -> None:
    stub = llm()
    register(server, stub)
    status, headers, body = raw_request(server, {"model": "small-llm", "messages": MESSAGES, "stream": True})
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert body == b"".join(stub.sent)


def raw_request(
    server: Server, body: dict[str, Any], headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
) -> tuple[int, dict[str, str], bytes]:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_a_client_that_goes_away_stops_the_instance(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    stub = llm(seconds=0.2)
    register(server, stub)
    with client.chat.completions.create(
        model="small-llm", messages=[{"role": "user", "content": "word " * 500}], stream=True
    ) as stream:
        next(iter(stream))
    eventually(lambda: stub.cancelled == 1)
    eventually(lambda: idle(server))


def test_a_client_that_goes_away_while_it_waits_is_forgotten(server: Server, llm: StartLLM) -> None:
    stub = llm(seconds=0.3)
    register(server, stub, concurrency=1)
    body = json.dumps({"model": "small-llm", "messages": [{"role": "user", "content": "word " * 500}]}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        first.sendall(request)
        eventually(lambda: stub.running == 1)
        with socket.create_connection(("127.0.0.1", server.port)) as second:
            second.sendall(request)
            eventually(lambda: server.ok("/queue/info")["queues"][0]["length"] == 2)
        eventually(lambda: server.ok("/queue/info")["queues"][0]["length"] == 1)
    eventually(lambda: idle(server))
    assert len(stub.requests) == 1


def test_concurrency_limits_apply(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    stub = llm(seconds=0.02)
    register(server, stub, concurrency=1)
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        answers = list(
            threads.map(lambda _: client.chat.completions.create(model="small-llm", messages=MESSAGES), range(6))
        )
    assert len(answers) == 6
    eventually(lambda: idle(server))


def test_an_unknown_model_is_not_found(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="large-llm"):
        client.chat.completions.create(model="large-llm", messages=MESSAGES)


def test_a_model_that_only_queues_serve_takes_no_v1_request(
    server: Server, instance: Callable[..., StubInstance], client: openai.OpenAI
) -> None:
    stub = instance("small-llm")
    server.ok("/ti/register", {"host": "127.0.0.1", "port": stub.port})
    with pytest.raises(openai.BadRequestError, match="take no /v1 requests"):
        client.chat.completions.create(model="small-llm", messages=MESSAGES)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": 7}', b"[" * 100_000, b""])
def test_a_body_without_a_model_is_refused(server: Server, body: bytes) -> None:
    status, problem = server.call("/v1/chat/completions", body)
    assert status == 400
    assert "model" in problem["error"]["message"]


def test_errors_of_the_instance_are_passed_on(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    stub = llm()
    register(server, stub)
    stub.status = 503
    with pytest.raises(openai.InternalServerError, match="out of order"):
        client.chat.completions.create(model="small-llm", messages=MESSAGES)
    eventually(lambda: idle(server))


def test_an_answer_that_breaks_off_is_broken_off_for_the_client(
    server: Server, llm: StartLLM, client: openai.OpenAI
) -> None:
    stub = llm()
    stub.die_after = 1
    register(server, stub)
    stream = client.chat.completions.create(model="small-llm", messages=MESSAGES, stream=True)
    with pytest.raises(Exception, match="incomplete|closed"):  # the first part arrives
        list(stream)
    eventually(lambda: idle(server))


def test_an_instance_that_dies_before_it_answers_is_an_error_unless_the_request_may_be_repeated(
    server: Server, llm: StartLLM
) -> None:
    bad, body = llm(), {"model": "small-llm", "messages": MESSAGES}
    bad.die_after = 0
    register(server, bad)
    status, _, answer = raw_request(server, body)
    assert status == 502
    assert b"x-rmcs-idempotent" in answer
    good = llm()
    register(server, good)
    assert {raw_request(server, body, {"x-rmcs-idempotent": "true"})[0] for _ in range(5)} == {200}


def test_a_repeated_request_that_fails_again_is_an_error_of_the_gateway(server: Server, llm: StartLLM) -> None:
    bad, body = llm(), {"model": "small-llm", "messages": MESSAGES}
    bad.die_after = 0
    register(server, bad)
    status, _, answer = raw_request(server, body, {"x-rmcs-idempotent": "true"})
    assert (status, json.loads(answer)["status"]) == (502, 502)
    assert b"was tried 3 times" in answer


def test_a_request_can_be_queried_and_explained(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    stub = llm()
    register(server, stub)
    raw = client.chat.completions.with_raw_response.create(model="small-llm", messages=MESSAGES)
    task_id, instance = raw.headers["x-rmcs-task-id"], raw.headers["x-rmcs-instance"]
    eventually(lambda: server.ok(f"/task/query?task_id={task_id}")["task_status"] == "completed")
    found = server.ok(f"/task/query?task_id={task_id}")
    assert (found["scheduled_ti"], found["model_name"], found["result"]) == (instance, "small-llm", None)
    explained = server.ok(f"/task/explain?task_id={task_id}")
    assert (explained["instance"], explained["decision"]["instance"]) == (instance, instance)
    assert server.ok("/task/all_tasks")["total_tasks"] == 0, "it is no task"
    stub.status = 503
    with pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(model="small-llm", messages=MESSAGES)
    task_id = failed.value.response.headers["x-rmcs-task-id"]
    eventually(lambda: server.ok(f"/task/query?task_id={task_id}")["error"] == "status 503")


def test_the_newest_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_tracker, "_MAX_REQUESTS", 2)
    tracker = task_tracker.TaskTracker()
    for one in "abc":
        tracker.keep_request(Task(one, "llm", None, {}, {}, 0.0), "ann")
    assert [tracker.find(one) is not None for one in "abc"] == [False, True, True]


def test_the_models_of_v1(server: Server, instance: Callable[..., StubInstance], client: openai.OpenAI) -> None:
    server.ok("/ti/register", {"host": "127.0.0.1", "port": instance().port})
    stub = OpenAIStub("maker/small-llm")
    try:
        register(server, stub)
        assert [one.id for one in client.models.list()] == ["maker/small-llm"]
        assert client.models.retrieve("maker/small-llm").id == "maker/small-llm"
        for name in ("ocr", "none"):
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve(name)
    finally:
        stub.stop()


def test_an_instance_that_is_gone_is_not_tried_twice(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    gone, stays = llm(), llm()
    for stub in (gone, stays):
        register(server, stub)
    gone.stop()
    for _ in range(5):
        assert client.chat.completions.create(model="small-llm", messages=MESSAGES).choices
    assert len(stays.requests) == 5


def test_a_deadline_that_cannot_be_met_sheds_the_request(server: Server, llm: StartLLM) -> None:
    stub = llm(seconds=0.05)
    register(server, stub, concurrency=1)
    body = {"model": "small-llm", "messages": MESSAGES}
    for _ in range(3):
        assert raw_request(server, body)[0] == 200
    status, headers, answer = raw_request(server, body, {"x-rmcs-deadline-ms": "20"})
    assert (status, headers["retry-after"]) == (503, "1")
    assert b"within 20 ms" in answer
    assert raw_request(server, body, {"x-rmcs-deadline-ms": "60000"})[0] == 200
    assert raw_request(server, body, {"x-rmcs-deadline-ms": "soon"})[0] == 400
    assert "x-rmcs-deadline-ms" not in stub.headers[-1]


def test_over_the_bound_requests_are_refused(server: Server, llm: StartLLM) -> None:
    register(server, llm())
    server.scheduler.max_waiting = 0
    assert raw_request(server, {"model": "small-llm", "messages": MESSAGES})[0] == 429


def test_running_requests_and_those_for_other_models_do_not_count_as_waiting(server: Server, llm: StartLLM) -> None:
    slow = llm(seconds=600)
    register(server, slow, concurrency=3)
    server.scheduler.max_waiting = 1
    server.ok("/queue/submit", {"model_name": "nobody serves it", "task_input": 1})
    body = json.dumps({"model": "small-llm", "messages": MESSAGES}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s"
    with contextlib.ExitStack() as stack:
        for count in range(1, 5):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(request % (len(body), body))
            eventually(lambda count=count: server.ok("/queue/info")["queues"][0]["length"] == count)
        assert raw_request(server, {"model": "small-llm", "messages": MESSAGES})[0] == 429
    eventually(lambda: idle(server))


def test_a_task_of_the_queue_runs_on_an_openai_style_instance(server: Server, llm: StartLLM) -> None:
    register(server, llm())
    submitted = server.ok("/queue/submit", {"model_name": "small-llm", "task_input": {"messages": MESSAGES}})
    task = server.result(submitted["task_id"])
    assert task["result"]["choices"][0]["message"]["content"] == "three two one"


@pytest.mark.parametrize(
    ("body", "features"),
    [
        (
            {"messages": [{"content": "four"}, {"content": [{"type": "text", "text": "five5"}]}]},
            {"prompt_characters": 9},
        ),
        ({"prompt": ["ab", "c"], "max_tokens": 7}, {"prompt_characters": 3, "max_tokens": 7}),
        ({"input": "abc", "max_tokens": 7, "max_completion_tokens": 9}, {"prompt_characters": 3, "max_tokens": 9}),
        ({"messages": 7, "max_tokens": True}, {"prompt_characters": 0}),
        ({"messages": [[["x"]]], "max_tokens": "many"}, {"prompt_characters": 1}),
        ({"prompt": "x", "max_tokens": 10**400}, {"prompt_characters": 1}),
        ({"prompt": "x", "max_tokens": math.nan}, {"prompt_characters": 1}),
        ({"prompt": "x", "max_tokens": None}, {"prompt_characters": 1}),
    ],
)
def test_the_features_of_a_request_are_its_prompt_and_its_limit(body: Any, features: dict[str, float]) -> None:
    assert describe_request(json.dumps({"model": "m", **body}).encode()) == ("m", features)


def test_the_time_of_requests_is_learned_from_their_features(
    server: Server, llm: StartLLM, client: openai.OpenAI
) -> None:
    uuid = register(server, llm(seconds=0.004))
    for words in [1, 10, 20] * 5:
        messages: list[Any] = [{"role": "user", "content": "word " * words}]
        client.chat.completions.create(model="small-llm", messages=messages, max_tokens=words)
    predictor = server.scheduler.predictor
    short, long = (
        predictor.predict("small-llm", uuid, {}, {}, {"prompt_characters": 5.0 * words, "max_tokens": float(words)})
        for words in (1, 20)
    )
    assert short is not None
    assert long is not None
    assert long.mean_ms > 2 * short.mean_ms


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_request_of_the_async_client_stops_the_instance(
    server: Server, llm: StartLLM, stream: bool
) -> None:
    stub = llm(seconds=0.2)
    register(server, stub)
    messages: list[Any] = [{"role": "user", "content": "word " * 500}]

    async def call() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            answer = await client.chat.completions.create(model="small-llm", messages=messages, stream=stream)
            assert stream
            async for _ in answer:
                pass

    async def cancel() -> None:
        request = asyncio.create_task(call())
        while not stub.running:
            await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

    asyncio.run(cancel())
    eventually(lambda: stub.cancelled == 1)
    eventually(lambda: idle(server))


def test_a_hanging_instance_delays_no_request_to_another(server: Server, llm: StartLLM, client: openai.OpenAI) -> None:
    hanging, well = llm(seconds=600), llm()
    register(server, hanging, concurrency=1)
    body = json.dumps({"model": "small-llm", "messages": MESSAGES}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as waiting:
        waiting.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        eventually(lambda: server.ok("/queue/info")["queues"][0]["running"] == 1)
        register(server, well, concurrency=1)
        for _ in range(5):
            assert client.chat.completions.create(model="small-llm", messages=MESSAGES).choices
    eventually(lambda: idle(server))
    assert len(well.requests) == 5

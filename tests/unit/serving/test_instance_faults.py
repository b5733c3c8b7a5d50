"""Instances that refuse connections, are busy, restart or report nonsense: only what they really lost is lost."""

from __future__ import annotations

import asyncio
import errno
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from ray_multicluster_scheduler.common.exception import ConfigurationError, InferenceError
from ray_multicluster_scheduler.serving import SchedulerRequest, SwarmPilotScheduler, TaskInstanceClient
from ray_multicluster_scheduler.serving.models import TaskStatus
from ray_multicluster_scheduler.serving.predictor import Prediction, Predictor
from ray_multicluster_scheduler.serving.router.http_client import HttpError, HttpPool
from tests.support.serving_instances import OpenAIStub, StubInstance
from tests.support.serving_server import Server

Start = Callable[..., StubInstance]


def request(page: int = 1, **values: Any) -> SchedulerRequest:
    return SchedulerRequest(model_type="ocr", input_data={"page": page}, **values)


def eventually(check: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def failing(
    client: TaskInstanceClient, monkeypatch: pytest.MonkeyPatch, method: str, times: int, *, local: bool = False
) -> list[str]:
    """The next connections for requests of this method fail; returns the failed requests as they come."""
    fetch, failed = client.pool.fetch, list[str]()

    async def fetch_or_fail(verb: str, path: str, **options: Any) -> Any:
        if verb == method and len(failed) < times:
            failed.append(path)
            raise HttpError("refused the connection", sent=False, local=local)
        return await fetch(verb, path, **options)

    monkeypatch.setattr(client.pool, "fetch", fetch_or_fail)
    return failed


def answering(*answers: web.Response) -> Callable[[web.Request], Any]:
    """A handler that gives these answers one after another, and then results."""
    left = list(answers)

    async def handle(_: web.Request) -> web.Response:
        return left.pop(0) if left else web.json_response({"result": "fine"})

    return handle


async def acknowledge(_: web.Request) -> web.Response:
    return web.json_response({"status": "success"})


# ---- connections that fail


def test_a_failed_connection_gives_back_one_task_and_loses_none_that_runs(
    scheduler: SwarmPilotScheduler, instance: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = instance(replicas=4)
    stub.hold_tasks()
    added = scheduler.add_instance(stub.address)
    ids = [scheduler.schedule(request(page)).task_id for page in range(2)]
    eventually(lambda: stub.running == 2)
    failed = failing(added.instance, monkeypatch, "POST", 1)
    probes = stub.probes
    ids.append(scheduler.schedule(request(2)).task_id)
    eventually(lambda: stub.running == 3)
    assert failed == ["/queue/submit"]
    assert stub.probes > probes, "probed at once"
    assert scheduler.instance_problem(added.uuid) == ""
    stub.release_tasks()
    assert [scheduler.wait(one, timeout=60)["echo"]["page"] for one in ids] == [0, 1, 2]
    assert len(stub.received) == 3, "none ran twice"


def test_what_runs_is_lost_after_three_failed_probes_in_a_row(
    scheduler: SwarmPilotScheduler, instance: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = instance(handler=acknowledge)
    added = scheduler.add_instance(stub.address)
    task = scheduler.schedule(request()).task_id
    eventually(lambda: acknowledged(scheduler, task))
    failed = failing(added.instance, monkeypatch, "GET", 2)
    eventually(lambda: len(failed) == 2 and scheduler.instance_problem(added.uuid) == "")
    assert state(scheduler, task) is TaskStatus.SCHEDULED
    failing(added.instance, monkeypatch, "GET", 3)
    with pytest.raises(InferenceError, match="not idempotent"):
        scheduler.wait(task, timeout=60)


def test_what_runs_is_not_lost_while_this_process_has_no_descriptors(
    instance: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = instance(handler=acknowledge)
    with SwarmPilotScheduler(health_interval_s=0.05) as scheduler:
        added = scheduler.add_instance(stub.address)
        task = scheduler.schedule(request()).task_id
        eventually(lambda: acknowledged(scheduler, task))
        failed = failing(added.instance, monkeypatch, "GET", 6, local=True)
        probes = stub.probes
        eventually(lambda: len(failed) == 6 and stub.probes > probes)
        assert scheduler.instance_problem(added.uuid) == ""
        assert acknowledged(scheduler, task)


async def test_an_exhausted_process_is_told_from_an_instance_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    with pytest.raises(HttpError, match="Too many open files") as failed:
        await HttpPool("http://127.0.0.1:1").fetch("GET", "/")
    assert failed.value.local
    assert not failed.value.sent


def test_a_task_whose_connection_fails_goes_to_another_instance(
    scheduler: SwarmPilotScheduler, instance: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = instance(), instance()
    added = scheduler.add_instance(first.address)
    failing(added.instance, monkeypatch, "POST", 10**6)
    scheduler.set_strategy("round_robin")
    scheduler.add_instance(second.address)
    ids = [scheduler.schedule(request(page)).task_id for page in range(10)]
    assert {scheduler.wait(one, timeout=60)["instance"] for one in ids} == {second.address}


def test_a_pass_through_waits_while_one_connection_fails(
    server: Server, llm: Callable[..., OpenAIStub], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = llm(seconds=0.2)
    uuid = server.ok("/ti/register", {"host": "127.0.0.1", "port": stub.port, "kind": "openai"})["ti_uuid"]
    body = {"model": "small-llm", "messages": [{"role": "user", "content": "one two three"}]}
    answers: list[tuple[int, Any]] = []
    first = threading.Thread(target=lambda: answers.append(server.call("/v1/chat/completions", body)))
    first.start()
    eventually(lambda: stub.running == 1)
    pool = server.scheduler._instances.channels[uuid].client.pool
    acquire, failed = pool._acquire, list[int]()

    async def acquire_or_fail() -> Any:
        if not failed:
            failed.append(1)
            raise HttpError("refused the connection", sent=False)
        return await acquire()

    monkeypatch.setattr(pool, "_acquire", acquire_or_fail)
    answers.append(server.call("/v1/chat/completions", body))
    first.join()
    assert [status for status, _ in answers] == [200, 200]
    assert failed


# ---- busy instances and wrong requests


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_instance_uses_up_no_attempts(scheduler: SwarmPilotScheduler, instance: Start, status: int) -> None:
    busy = [web.Response(status=status, headers={"retry-after": "0"}) for _ in range(8)]
    added = scheduler.add_instance(instance(handler=answering(*busy)).address)
    task = scheduler.schedule(request(metadata={"idempotent": False})).task_id
    assert scheduler.wait(task, timeout=60) == "fine"
    assert scheduler.instance_problem(added.uuid) == ""


def test_other_instances_are_tried_before_a_busy_one(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    always_busy = answering(*[web.Response(status=503, headers={"retry-after": "600"}) for _ in range(100)])
    busy, well = instance(handler=always_busy), instance()
    for strategy in ("round_robin", "shortest_queue"):
        scheduler.set_strategy(strategy)
        for stub in (busy, well):
            scheduler.add_instance(stub.address)
        ids = [scheduler.schedule(request(page)).task_id for page in range(20)]
        assert {scheduler.wait(one, timeout=60)["instance"] for one in ids} == {well.address}


def test_what_waits_at_a_busy_instance_moves_to_a_free_slot(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    busy = instance(handler=answering(*[web.Response(status=503, headers={"retry-after": "600"}) for _ in range(9)]))
    scheduler.add_instance(busy.address)
    task = scheduler.schedule(request()).task_id
    (found,) = scheduler._router.instances.values()
    eventually(lambda: found.paused and found.waiting)
    well = instance()
    scheduler.add_instance(well.address)
    assert scheduler.wait(task, timeout=60)["instance"] == well.address
    decision = scheduler.explain(task)["decision"]
    assert "takes no requests now" in decision["reason"]
    assert decision["instance"] in [one["instance"] for one in decision["candidates"]]


def test_a_retry_after_is_honoured_up_to_a_minute(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    added = scheduler.add_instance(
        instance(handler=answering(web.Response(status=429, headers={"retry-after": "86400"}))).address
    )
    scheduler.schedule(request())
    channel = scheduler._instances.channels[added.uuid]
    eventually(lambda: channel._paused_until > 0)
    assert 45 < channel._paused_until - scheduler.loop.time() <= 60


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_wrong_requests_fail_and_do_not_open_the_breaker(
    scheduler: SwarmPilotScheduler, instance: Start, status: int
) -> None:
    added = scheduler.add_instance(
        instance(handler=answering(*[web.Response(status=status, text="no page") for _ in range(8)])).address
    )
    for page in range(8):
        with pytest.raises(InferenceError, match=f"{status}: no page"):
            scheduler.wait(scheduler.schedule(request(page)).task_id, timeout=60)
    assert scheduler.instance_problem(added.uuid) == ""


def test_a_request_that_took_the_instance_too_long_to_read_is_repeated(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    scheduler.add_instance(instance(handler=answering(web.Response(status=408))).address)
    assert scheduler.wait(scheduler.schedule(request()).task_id, timeout=60) == "fine"


def test_a_task_cannot_ask_for_a_stream(server: Server, llm: Callable[..., OpenAIStub]) -> None:
    stub = llm()
    uuid = server.ok("/ti/register", {"host": "127.0.0.1", "port": stub.port, "kind": "openai"})["ti_uuid"]
    body = {"messages": [{"role": "user", "content": "one"}], "stream": True}
    for _ in range(6):
        task = server.ok("/queue/submit", {"model_name": "small-llm", "task_input": body})["task_id"]
        assert "stream: true" in server.result(task)["error"]
    assert server.scheduler.instance_problem(uuid) == ""
    assert not stub.requests


def acknowledged(scheduler: SwarmPilotScheduler, task_id: str) -> bool:
    with scheduler._lock:
        return scheduler._router.tasks[task_id].acknowledged


def state(scheduler: SwarmPilotScheduler, task_id: str) -> TaskStatus:
    info = scheduler.task_tracker.get_task_info(task_id)
    assert info is not None
    return info.task_status


# ---- restarts


def tries(scheduler: SwarmPilotScheduler, task_id: str) -> int:
    with scheduler._lock:
        return scheduler._router.tasks[task_id].attempt


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("boot_id", [None, "in info", "in registrations"])
def test_a_restarted_instance_has_lost_its_acknowledged_tasks(
    instance: Start, boot_id: str | None, idempotent: bool
) -> None:
    def register(number: int) -> None:
        if boot_id == "in info":
            stub.info = {"boot_id": f"boot {number}"}
        given = f"boot {number}" if boot_id == "in registrations" else None
        scheduler.run(scheduler.add_instance_async(stub.address, boot_id=given))

    stub = instance(handler=acknowledge)
    with SwarmPilotScheduler(health_interval_s=3600) as scheduler:
        register(1)
        task = scheduler.schedule(request(metadata={"idempotent": idempotent})).task_id
        eventually(lambda: acknowledged(scheduler, task))
        register(2)
        if idempotent:
            eventually(lambda: tries(scheduler, task) == 2 and acknowledged(scheduler, task))
            scheduler.handle_completion(task, stub.address, 1.0, "x")
            assert scheduler.wait(task) == "x"
        else:
            with pytest.raises(InferenceError, match="was restarted; it may have run, and is not idempotent"):
                scheduler.wait(task, timeout=60)
        assert scheduler.queue_info()[0].length == 0


@pytest.mark.parametrize(
    ("info", "boot_id", "again"),
    [
        ({}, None, False),
        ({"queue_info": {"length_of_queue": 1}}, None, True),
        ({"queue_info": {}}, None, True),
        ({"queue_info": None}, None, True),
        ({"boot_id": "one"}, None, True),
        ({}, "one", True),
    ],
)
def test_a_task_is_not_lost_while_nothing_shows_a_restart(
    instance: Start, info: dict[str, Any], boot_id: str | None, again: bool
) -> None:
    """Also at instances that do not count what they run in the length of their queue."""
    stub = instance(handler=acknowledge)
    stub.info = info
    with SwarmPilotScheduler(health_interval_s=0.02) as scheduler:
        scheduler.run(scheduler.add_instance_async(stub.address, boot_id=boot_id))
        task = scheduler.schedule(request()).task_id
        eventually(lambda: acknowledged(scheduler, task))
        if again:
            scheduler.run(scheduler.add_instance_async(stub.address, boot_id=boot_id))
        probes = stub.probes
        eventually(lambda: stub.probes > probes + 3)
        assert acknowledged(scheduler, task)
        assert tries(scheduler, task) == 1


def test_a_task_that_runs_too_long_is_cancelled(instance: Start) -> None:
    stub = instance()
    stub.hold_tasks()
    with SwarmPilotScheduler(health_interval_s=0.05, task_timeout_s=0.2) as scheduler:
        scheduler.add_instance(stub.address)
        with pytest.raises(InferenceError, match=r"no result in 0\.2 s"):
            scheduler.wait(scheduler.schedule(request(metadata={"idempotent": False})).task_id, timeout=60)
        eventually(lambda: stub.cancelled == 1)
        assert stub.running == 0


# ---- numbers that make no sense


@pytest.mark.parametrize("replicas", [10**400, -1, True, 1.5, float("nan"), float("inf"), 100_001, "many", [2]])
def test_an_instance_with_an_impossible_number_of_replicas_is_not_used(
    scheduler: SwarmPilotScheduler, instance: Start, replicas: Any
) -> None:
    stub = instance()
    stub.info = {"deployed_model": {"model_name": "ocr", "replicas": replicas}}
    added = scheduler.add_instance(stub.address, model_name="ocr")
    assert "replicas_running" in scheduler.instance_problem(added.uuid)
    tasks = [scheduler.schedule(request(page)).task_id for page in range(2)]
    stub.info = {}
    for one in tasks:
        scheduler.wait(one, timeout=60)


@pytest.mark.parametrize(
    "given",
    [{"concurrency": one} for one in (0, -1, 10**400, math.nan)]
    + [{"weight": one} for one in (0.0, -1.0, math.nan, math.inf)],
)
def test_a_registration_with_impossible_numbers_is_refused(
    scheduler: SwarmPilotScheduler, instance: Start, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match="out of range"):
        scheduler.add_instance(instance().address, **given)
    assert not scheduler.queue_info()


class Broken(Predictor):
    def predict(self, *_: Any) -> Prediction | None:
        raise RuntimeError("no idea")


class Nonsense(Predictor):
    def predict(self, *_: Any) -> Prediction | None:
        return Prediction(math.nan, -1.0)


@pytest.mark.parametrize("predictor", [Broken(), Nonsense()])
def test_a_predictor_that_fails_loses_no_request(
    scheduler: SwarmPilotScheduler, instance: Start, predictor: Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        scheduler.add_instance(instance().address)
    scheduler._router.predictor = predictor
    ids = [scheduler.schedule(request(page)).task_id for page in range(10)]
    for one in ids:
        scheduler.wait(one, timeout=60)
    assert caplog.text.count("no times of ocr are predicted") == 1
    assert not scheduler._router.tasks


def test_a_task_that_cannot_be_placed_fails(
    scheduler: SwarmPilotScheduler, instance: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even by a fault of this program it does not stay queued in no queue."""
    scheduler.add_instance(instance().address)

    def choose(*_: object) -> None:
        raise OverflowError("too large")

    with monkeypatch.context() as patched:
        patched.setattr(scheduler._router, "_choose", choose)
        task = scheduler.schedule(request()).task_id
    with pytest.raises(InferenceError, match="too large"):
        scheduler.wait(task, timeout=60)
    assert not scheduler._router.tasks
    assert not scheduler._router.unassigned
    assert scheduler.wait(scheduler.schedule(request()).task_id, timeout=60)

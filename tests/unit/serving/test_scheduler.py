"""SwarmPilotScheduler with real stub instances over HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InferenceError,
    InstanceError,
    QueueFullError,
    SchedulerError,
    TaskTimeoutError,
    UnknownItemError,
)
from ray_multicluster_scheduler.serving import (
    BaseStrategy,
    Candidate,
    Choice,
    SchedulerRequest,
    SwarmPilotScheduler,
    TaskInstanceClient,
    load_config,
)
from ray_multicluster_scheduler.serving.models import TaskStatus
from ray_multicluster_scheduler.serving.router import forwarder
from ray_multicluster_scheduler.serving.strategies.base import RequestView
from tests.support.serving_instances import StubInstance

Start = Callable[..., StubInstance]


def request(page: int = 1, **values: Any) -> SchedulerRequest:
    return SchedulerRequest(model_type="ocr", input_data={"page": page}, **values)


def eventually(check: Callable[[], object], seconds: float = 60) -> None:
    """Wait until ``check`` is true; it depends on another thread."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def status(scheduler: SwarmPilotScheduler, task_id: str) -> TaskStatus:
    info = scheduler.task_tracker.get_task_info(task_id)
    assert info is not None
    return info.task_status


def test_a_request_is_scheduled_forwarded_and_answered(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance()
    added = scheduler.add_instance(f"http://{stub.address}")
    response = scheduler.schedule(request(metadata={"hardware": "a100"}))
    assert response.instance_id == added.uuid
    assert scheduler.wait(response.task_id, timeout=60) == {"echo": {"page": 1}, "instance": stub.address}
    assert status(scheduler, response.task_id) is TaskStatus.COMPLETED
    explained = scheduler.explain(response.task_id)
    assert explained["decision"]["candidates"][0]["instance"] == added.uuid


async def test_the_async_twins(instance: Start) -> None:
    stub = instance()
    scheduler = SwarmPilotScheduler(loop=asyncio.get_running_loop())
    await scheduler.add_instance_async(stub.address)
    responses = await asyncio.gather(*(scheduler.schedule_async(request(page)) for page in range(20)))
    results = await asyncio.gather(*(scheduler.wait_async(one.task_id, timeout=60) for one in responses))
    assert [one["echo"]["page"] for one in results] == list(range(20))
    await scheduler.close_async()


async def test_async_calls_from_another_loop_than_the_schedulers(instance: Start) -> None:
    scheduler = SwarmPilotScheduler()
    await scheduler.add_instance_async(instance().address)
    response = await scheduler.schedule_async(request())
    assert (await scheduler.wait_async(response.task_id, timeout=60))["echo"] == {"page": 1}
    await scheduler.close_async()


def test_an_instance_that_acknowledges_reports_its_result_later(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    async def acknowledge(_: web.Request) -> web.Response:
        return web.json_response({"status": "success"})

    stub = instance(handler=acknowledge)
    added = scheduler.add_instance(stub.address)
    response = scheduler.schedule(request())
    with pytest.raises(TaskTimeoutError, match=response.task_id):
        scheduler.wait(response.task_id, timeout=0.05)
    with pytest.raises(InstanceError, match="never given"):
        scheduler.handle_completion(response.task_id, "127.0.0.1:1", 5.0, "a lie")
    assert scheduler.handle_completion(response.task_id, stub.address, 5.0, {"text": "x"})
    assert not scheduler.handle_completion(response.task_id, added.uuid, 5.0, {"text": "a repeat"})
    assert scheduler.wait(response.task_id) == {"text": "x"}
    times = scheduler.statistics()["times"]["ocr"][added.uuid]
    assert times["execution"]["mean_ms"] == 5.0


def test_a_concurrency_limit_bounds_what_is_forwarded(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance(replicas=3)
    stub.hold_tasks()
    added = scheduler.add_instance(stub.address)
    ids = [scheduler.schedule(request(page)).task_id for page in range(8)]
    eventually(lambda: stub.running == 3)
    (queue,) = scheduler.queue_info("ocr")
    assert (queue.ti_uuid, queue.length, queue.running, queue.healthy) == (added.uuid, 8, 3, True)
    assert Counter(status(scheduler, one) for one in ids) == {TaskStatus.SCHEDULED: 3, TaskStatus.QUEUED: 5}
    stub.release_tasks()
    for one in ids:
        scheduler.wait(one, timeout=60)
    assert stub.most_running == 3
    (queue,) = scheduler.queue_info()
    assert (queue.length, queue.waiting_time_expect, queue.waiting_time_error) == (0, 0, 0)


def test_requests_wait_until_an_instance_registers(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    responses = [scheduler.schedule(request(page)) for page in range(50)]
    assert {one.instance_id for one in responses} == {None}
    assert "no instance of the model ocr is registered" in responses[0].reason
    scheduler.add_instance(instance().address)
    assert [scheduler.wait(one.task_id, timeout=60)["echo"]["page"] for one in responses] == list(range(50))


def test_an_instance_that_does_not_answer_is_used_when_it_does(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance()
    port = stub.port
    stub.stop()
    added = scheduler.add_instance(f"127.0.0.1:{port}")
    assert "refused" in scheduler.instance_problem(added.uuid)
    response = scheduler.schedule(request())
    assert response.instance_id is None
    instance(port=port)
    assert scheduler.wait(response.task_id, timeout=60)["echo"] == {"page": 1}
    assert scheduler.instance_problem(added.uuid) == ""


def test_the_same_address_twice_is_one_instance(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance()
    first = scheduler.add_instance(stub.address, model_name="ocr")
    assert scheduler.add_instance(f"http://{stub.address}") == first
    assert len(scheduler.queue_info()) == 1


def test_a_dead_instance_delays_no_request(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    """One of two stops; what was sent to it is sent to the other."""
    first, second = instance(), instance()
    for stub in (first, second):
        stub.hold_tasks()
        scheduler.add_instance(stub.address)
    ids = [scheduler.schedule(request(page)).task_id for page in range(10)]
    eventually(lambda: first.running and second.running)
    first.stop()
    second.release_tasks()
    assert sorted(scheduler.wait(one, timeout=60)["echo"]["page"] for one in ids) == list(range(10))
    assert len(second.received) == 10


@pytest.mark.parametrize("idempotent", [True, False])
def test_an_acknowledged_task_of_a_dead_instance_is_repeated_only_if_it_may_be(
    scheduler: SwarmPilotScheduler, instance: Start, idempotent: bool
) -> None:
    async def acknowledge(_: web.Request) -> web.Response:
        return web.json_response({"status": "success"})

    first = instance(handler=acknowledge)
    scheduler.add_instance(first.address)
    response = scheduler.schedule(request(metadata={"idempotent": idempotent}))
    eventually(lambda: status(scheduler, response.task_id) is TaskStatus.SCHEDULED)
    second = instance()
    scheduler.add_instance(second.address)
    with scheduler._lock:
        task = scheduler._router.tasks[response.task_id]
    eventually(lambda: task.acknowledged)
    first.stop()
    if idempotent:
        assert scheduler.wait(response.task_id, timeout=60)["instance"] == second.address
    else:
        with pytest.raises(InferenceError, match="not idempotent"):
            scheduler.wait(response.task_id, timeout=60)


def answering(*answers: web.Response | None) -> Callable[[web.Request], Any]:
    """A handler that gives these answers one after another; None closes the connection instead."""
    left = list(answers)

    async def handle(http: web.Request) -> web.StreamResponse:
        answer = left.pop(0) if left else web.json_response({"result": "fine"})
        if answer is None:
            assert http.transport is not None
            http.transport.abort()
            return web.Response()
        return answer

    return handle


BAD_ANSWERS = [
    web.Response(status=500, text="no"),
    web.Response(text="garbage"),
    web.Response(text='{"result": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    web.json_response({"task_id": "another", "result": 1}),
    None,
]


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_a_request_that_an_instance_cannot_answer_is_tried_again(
    scheduler: SwarmPilotScheduler, instance: Start, bad: web.Response | None
) -> None:
    scheduler.add_instance(instance(handler=answering(bad)).address)
    response = scheduler.schedule(request())
    assert scheduler.wait(response.task_id, timeout=60) == "fine"


def test_a_request_that_no_instance_can_answer_fails_after_three_attempts(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    answers = [web.Response(status=500, text="no") for _ in range(3)]
    scheduler.add_instance(instance(handler=answering(*answers)).address)
    response = scheduler.schedule(request())
    with pytest.raises(InferenceError, match=r"500: no; it was tried 3 times"):
        scheduler.wait(response.task_id, timeout=60)


def test_a_wrong_request_fails_at_once_and_is_not_the_instances_fault(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    added = scheduler.add_instance(instance(handler=answering(web.Response(status=422, text="no page"))).address)
    response = scheduler.schedule(request())
    with pytest.raises(InferenceError, match="422: no page"):
        scheduler.wait(response.task_id, timeout=60)
    assert scheduler.instance_problem(added.uuid) == ""


def test_an_instance_reports_a_failed_task(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    scheduler.add_instance(instance(handler=answering(web.json_response({"error": "blank page"}))).address)
    response = scheduler.schedule(request())
    with pytest.raises(InferenceError, match="blank page"):
        scheduler.wait(response.task_id, timeout=60)
    assert status(scheduler, response.task_id) is TaskStatus.FAILED


def test_the_breaker_opens_after_failures_in_a_row(
    scheduler: SwarmPilotScheduler, instance: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "_MAX_RECOVERY_S", 0.2)
    bad = instance(handler=answering(*[web.Response(status=500) for _ in range(forwarder.FAILURES_TO_OPEN)]))
    added = scheduler.add_instance(bad.address)
    ids = [scheduler.schedule(request(page, metadata={"idempotent": False})).task_id for page in range(7)]
    for one in ids[: forwarder.FAILURES_TO_OPEN]:
        with pytest.raises(InferenceError):
            scheduler.wait(one, timeout=60)
    assert [scheduler.wait(one, timeout=60) for one in ids[forwarder.FAILURES_TO_OPEN :]] == ["fine", "fine"]
    eventually(lambda: scheduler.instance_problem(added.uuid) == "")


def test_removal_drains(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    first = instance()
    first.hold_tasks()
    added = scheduler.add_instance(first.address)
    ids = [scheduler.schedule(request(page)).task_id for page in range(4)]
    eventually(lambda: first.running == 1)
    assert scheduler.remove_instance(first.address) == added.uuid
    assert "can take it now" in scheduler.explain(ids[3])["reason"]
    second = instance()
    scheduler.add_instance(second.address)
    for one in ids[1:]:
        assert scheduler.wait(one, timeout=60)["instance"] == second.address
    first.release_tasks()
    assert scheduler.wait(ids[0], timeout=60)["instance"] == first.address
    eventually(lambda: len(scheduler.queue_info()) == 1)
    with pytest.raises(UnknownItemError):
        scheduler.remove_instance(added)


def test_removal_without_draining_sends_what_runs_elsewhere(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    first = instance()
    first.hold_tasks()
    added = scheduler.add_instance(first.address)
    response = scheduler.schedule(request())
    eventually(lambda: first.running == 1)
    second = instance()
    scheduler.add_instance(second.address)
    scheduler.remove_instance(added, drain=False)
    assert scheduler.wait(response.task_id, timeout=60)["instance"] == second.address
    eventually(lambda: first.cancelled == 1)


def test_a_task_that_runs_too_long_is_given_up(instance: Start) -> None:
    stub = instance()
    stub.hold_tasks()
    with SwarmPilotScheduler(health_interval_s=0.05, task_timeout_s=0.2) as scheduler:
        scheduler.add_instance(stub.address)
        response = scheduler.schedule(request(metadata={"idempotent": False}))
        with pytest.raises(InferenceError, match=r"no result in 0\.2 s"):
            scheduler.wait(response.task_id, timeout=60)
        assert scheduler.queue_info()[0].length == 0


def test_over_the_bound_a_request_is_refused(instance: Start) -> None:
    with SwarmPilotScheduler(max_waiting=3) as scheduler:
        for page in range(3):
            scheduler.schedule(request(page))
        with pytest.raises(QueueFullError):
            scheduler.schedule(request())
        assert scheduler.statistics()["tasks"]["queued"] == 3
        other = scheduler.submit("text", [(None, page, {}) for page in range(5)])
        assert [isinstance(one, QueueFullError) for one in other] == [False, False, False, True, True], "for each model"


def test_a_task_id_is_taken_once(scheduler: SwarmPilotScheduler) -> None:
    assert scheduler.schedule(request(task_id="mine")).task_id == "mine"
    assert scheduler.schedule(request(task_id="mine")).task_id == "mine", "a repeat of the same request"
    assert scheduler.statistics()["tasks"]["queued"] == 1
    with pytest.raises(ConfigurationError, match="mine"):
        scheduler.schedule(request(page=2, task_id="mine"))


def test_unknown_tasks_are_errors(scheduler: SwarmPilotScheduler) -> None:
    for call in (scheduler.wait, scheduler.explain, scheduler.handle_completion):
        with pytest.raises(UnknownItemError, match="nobody"):
            call("nobody")


def test_a_switch_of_strategy_keeps_what_is_charged(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stubs = [instance(), instance()]
    for stub in stubs:
        stub.hold_tasks()
        scheduler.add_instance(stub.address)
    ids = [scheduler.schedule(request(page)).task_id for page in range(6)]
    before = sorted(row.length for row in scheduler.queue_info())
    scheduler.set_strategy("round_robin")
    scheduler.set_strategy("weighted", model="ocr")
    assert sorted(row.length for row in scheduler.queue_info()) == before
    assert scheduler.statistics()["strategy"] == "round_robin"
    assert scheduler.statistics()["strategies"] == {"ocr": "weighted"}
    for stub in stubs:
        stub.release_tasks()
    for one in ids:
        scheduler.wait(one, timeout=60)
    with pytest.raises(ConfigurationError, match="fastest"):
        scheduler.set_strategy("fastest")


class Broken(BaseStrategy):
    name = "broken"

    def select(self, candidates: Sequence[Candidate], task: RequestView) -> Choice:
        if task.metadata.get("raise"):
            raise RuntimeError("no idea")
        return Choice("an instance that does not exist", "why not")


@pytest.mark.parametrize("metadata", [{}, {"raise": 1}])
def test_a_strategy_that_fails_loses_no_request(instance: Start, metadata: dict[str, Any]) -> None:
    with SwarmPilotScheduler(strategy=Broken()) as scheduler:
        scheduler.add_instance(instance().address)
        response = scheduler.schedule(request(metadata=metadata))
        assert "the strategy broken failed" in response.reason
        scheduler.wait(response.task_id, timeout=60)


def test_a_faster_instance_gets_more(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    fast, slow = instance(seconds=lambda task: 0.01), instance(seconds=lambda task: 0.2)
    for stub in (fast, slow):
        scheduler.add_instance(stub.address)
    ids = [scheduler.schedule(request(page)).task_id for page in range(60)]
    for one in ids:
        scheduler.wait(one, timeout=60)
    assert len(fast.received) > 3 * len(slow.received) > 0
    predicted = {row["instance"]: row for row in scheduler.statistics()["predictions"]}
    assert all(row["relative_error"] < 2 for row in predicted.values())


def test_many_threads_submit_and_wait(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    for _ in range(2):
        scheduler.add_instance(instance(replicas=4).address)
    results: list[int] = []

    def work(first: int) -> None:
        for page in range(first, first + 25):
            response = scheduler.schedule(request(page))
            results.append(scheduler.wait(response.task_id, timeout=60)["echo"]["page"])

    threads = [threading.Thread(target=work, args=(25 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(100))
    assert all(row.length == 0 == row.waiting_time_expect for row in scheduler.queue_info())


def test_a_closed_scheduler_says_so(instance: Start) -> None:
    scheduler = SwarmPilotScheduler()
    scheduler.add_instance(instance().address)
    scheduler.close()
    scheduler.close()
    with pytest.raises(SchedulerError, match="closed"):
        scheduler.schedule(request())


def test_a_client_may_be_given(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance()
    added = scheduler.add_instance(TaskInstanceClient(f"http://{stub.address}"), model_name="text", hardware="t4")
    assert added.instance.instance_id == stub.address
    assert [row.model_name for row in scheduler.queue_info()] == ["text"]


# ---- config.yaml


def test_a_configuration_registers_instances(scheduler: SwarmPilotScheduler, instance: Start, tmp_path: Path) -> None:
    stubs = [instance("ocr"), instance("text")]
    (tmp_path / "table.json").write_text("[]")
    path = tmp_path / "config.yaml"
    path.write_text(
        f"""
strategy: join_shortest_queue
strategies: {{text: round_robin, ocr: {{name: shortest_queue, risk: 1.5}}}}
predictions: table.json
max_waiting: 7
task_timeout_s: 60
instances:
  - {{host: 127.0.0.1, port: {stubs[0].port}, hardware: a100, concurrency: 4}}
  - {stubs[1].address}
  - {{host: 127.0.0.1, port: 1, model_name: later}}
"""
    )
    added = load_config(path, scheduler)
    assert [row.model_name for row in scheduler.queue_info()] == ["ocr", "text", "later"]
    assert [row.healthy for row in scheduler.queue_info()] == [True, True, False]
    assert scheduler.statistics()["strategies"] == {"text": "round_robin", "ocr": "shortest_queue"}
    assert vars(scheduler._router.strategies["ocr"])["risk"] == 1.5
    assert (scheduler.max_waiting, scheduler.task_timeout_s) == (7, 60)
    assert scheduler.predictor.table is not None
    assert len(added) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("instances: [{host: localhost, prot: 1}]", r"line 1: instances\.0\.prot: unknown key \(did you mean 'port'"),
        ("instance: []", r"instance: unknown key \(did you mean 'instances'"),
        ("instances: [{port: 99999999}]", r"instances\.0\.port"),
        ("instances: ['localhost']", r"instances\.0\.port"),
        ("instances: 7", "instances"),
        ("- 1", "not a mapping"),
        ("instances: [", "never closed"),
        ("predictions: none.json", r"none\.json"),
        ("strategy: fastest", "fastest"),
        ("strategy: {risk: 1}", r"strategy\.name"),
        ("strategy: {name: shortest_queue, risk: -1}", r"strategy\.risk"),
        ("strategy: {name: round_robin, risk: 1}", "round_robin"),
        ("strategy: {name: shortest_queue, ris: 1}", r"strategy\.ris"),
        ("strategy: 7", "strategy"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(
    scheduler: SwarmPilotScheduler, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        load_config(path, scheduler)


def test_a_missing_configuration_is_named(scheduler: SwarmPilotScheduler, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml"):
        load_config(tmp_path / "none.yaml", scheduler)

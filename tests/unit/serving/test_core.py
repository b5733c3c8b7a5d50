"""SwarmPilotScheduler against instances and clients that lie, repeat themselves, restart and change their mind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InferenceError,
    InstanceError,
    SchedulerError,
    UnknownItemError,
)
from ray_multicluster_scheduler.serving import SchedulerRequest, SwarmPilotScheduler
from ray_multicluster_scheduler.serving.models import TaskStatus, TIRegisterRequest
from ray_multicluster_scheduler.serving.router.ledger import Task
from ray_multicluster_scheduler.serving.strategies import strategy_names
from tests.support.serving_instances import StubInstance

Start = Callable[..., StubInstance]


def request(page: int = 1, **values: Any) -> SchedulerRequest:
    return SchedulerRequest(model_type="ocr", input_data={"page": page}, **values)


def eventually(check: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


async def acknowledge(_: web.Request) -> web.Response:
    return web.json_response({"status": "success"})


def acknowledged(scheduler: SwarmPilotScheduler, task_id: str) -> bool:
    with scheduler._lock:
        return scheduler._router.tasks[task_id].acknowledged


def assert_idle(scheduler: SwarmPilotScheduler) -> None:
    assert not scheduler._router.tasks
    for instance in scheduler._router.instances.values():
        assert (instance.length, instance.charged_us, instance.charged_variance) == (0, 0, 0)


# ---- addresses and registrations


def test_localhost_and_its_address_are_one_instance(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    """A configuration says localhost; the instance reports with the address that it sees."""
    stub = instance(handler=acknowledge)
    added = scheduler.add_instance(f"localhost:{stub.port}")
    assert scheduler.add_instance(stub.address) == added
    task = scheduler.schedule(request()).task_id
    eventually(lambda: acknowledged(scheduler, task))
    assert scheduler.handle_completion(task, stub.address, 5.0, "x")
    assert scheduler.remove_instance(f"LOCALHOST:{stub.port}") == added.uuid


@pytest.mark.parametrize("address", ["ftp://x", "http://", "127.0.0.1:99999999", "http://[::1", "[x]:80"])
def test_invalid_address_is_rejected(scheduler: SwarmPilotScheduler, address: str) -> None:
    with pytest.raises(ConfigurationError):
        scheduler.add_instance(address)
    assert not scheduler.queue_info()


def test_an_instance_that_registers_again_may_serve_another_model(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    stub = instance()
    first = scheduler.add_instance(stub.address, model_name="ocr", hardware="t4")
    task = scheduler.schedule(SchedulerRequest(model_type="text", input_data=1)).task_id
    assert scheduler.add_instance(stub.address, model_name="text", concurrency=3, hardware="a100") == first
    assert scheduler.wait(task, timeout=60)["echo"] == 1
    found = scheduler._router.instances[first.uuid]
    assert (found.models, found.concurrency, found.hardware) == (("text",), 3, {"hardware": "a100"})
    with pytest.raises(InstanceError, match="kind queue"):
        scheduler.add_instance(stub.address, kind="openai")


def test_an_instance_that_registers_again_gets_its_new_weight_and_addresses(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    stub = instance()

    def register(*addresses: str, **settings: Any) -> tuple[float, object]:
        request = TIRegisterRequest(host="some.invalid", port=stub.port, model_name="ocr", **settings)
        added = scheduler.run(scheduler.register_async(request, addresses))
        return scheduler._router.instances[added.uuid].weight, added.instance.addresses

    assert register("127.0.0.2", weight=3.0) == (3.0, ("127.0.0.2",))
    task = scheduler.schedule(request()).task_id
    assert register("127.0.0.1") == (3.0, ("127.0.0.1",)), "what is not given stays"
    assert scheduler.wait(task, timeout=60)["echo"] == {"page": 1}
    assert register("127.0.0.1", weight=0.5)[0] == 0.5
    assert len(scheduler.queue_info()) == 1


def test_more_slots_are_used_at_once(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance(replicas=4)
    stub.hold_tasks()
    scheduler.add_instance(stub.address, concurrency=1)
    ids = [scheduler.schedule(request(page)).task_id for page in range(4)]
    eventually(lambda: stub.running == 1)
    scheduler.add_instance(stub.address, concurrency=4)
    eventually(lambda: stub.running == 4)
    stub.release_tasks()
    for one in ids:
        scheduler.wait(one, timeout=60)


async def test_registering_twice_at_the_same_time_is_one_instance(instance: Start) -> None:
    stub = instance()
    scheduler = SwarmPilotScheduler(loop=asyncio.get_running_loop())
    added = await asyncio.gather(*(scheduler.add_instance_async(stub.address) for _ in range(10)))
    assert len({one.uuid for one in added}) == 1
    assert scheduler.instance_problem(added[0].uuid) == ""
    assert len(scheduler._instances.channels[added[0].uuid]._work) == 1, "one monitor"
    await scheduler.close_async()


def test_a_drained_instance_reports_although_its_address_is_registered_again(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    stub = instance(handler=acknowledge)
    first = scheduler.add_instance(stub.address)
    task = scheduler.schedule(request()).task_id
    eventually(lambda: acknowledged(scheduler, task))
    scheduler.remove_instance(first)
    assert scheduler.add_instance(stub.address).uuid != first.uuid
    assert scheduler.handle_completion(task, stub.address, 5.0, "x")
    assert scheduler.wait(task, timeout=60) == "x"
    assert [row.healthy for row in scheduler.queue_info()] == [True]


def test_instances_that_come_and_go_leave_nothing_behind(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance()
    for page in range(30):
        added = scheduler.add_instance(stub.address)
        scheduler.wait(scheduler.schedule(request(page)).task_id, timeout=60)
        scheduler.remove_instance(added)
    eventually(lambda: not scheduler._instances.channels)
    assert not scheduler._router.instances
    assert not scheduler._instances._ids
    assert not scheduler.predictor._accuracy
    assert {key[1] for key in scheduler.predictor._learned} == {""}, "only what is known of the model"


def test_an_instance_that_restarts_on_its_port_goes_on(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance()
    scheduler.add_instance(stub.address)
    for page in range(3):
        scheduler.wait(scheduler.schedule(request(page)).task_id, timeout=60)
        stub.stop()
        task = scheduler.schedule(request(page)).task_id
        stub = instance(port=stub.port)
        assert scheduler.wait(task, timeout=60)["echo"] == {"page": page}
    assert_idle(scheduler)


# ---- task ids and reports


def test_a_task_may_not_take_the_id_of_a_pass_through(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    """Its client reads the id in the headers of its answer."""
    stub = instance()
    added = scheduler.add_instance(stub.address)
    with scheduler._lock:
        scheduler._router.instances[added.uuid].openai = True
        future = asyncio.Future[Any](loop=scheduler.loop)
        passing = Task("theirs", "ocr", None, {}, {}, time.monotonic(), slot=future)
    scheduler.open_request(passing)
    with pytest.raises(ConfigurationError, match="taken"):
        scheduler.schedule(request(task_id="theirs"))
    with pytest.raises(UnknownItemError):
        scheduler.handle_completion("theirs", stub.address, 1.0, "x")
    with pytest.raises(UnknownItemError):
        scheduler.wait("theirs")
    scheduler.close_request(passing, learn=False)
    assert_idle(scheduler)


def test_reports_for_a_task_that_waits_change_nothing(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance()
    stub.hold_tasks()
    added = scheduler.add_instance(stub.address)
    _, waiting = (scheduler.schedule(request(page)).task_id for page in range(2))
    eventually(lambda: stub.running == 1)
    scheduler.acknowledge(waiting, added.uuid, True, "")
    scheduler.acknowledge(waiting, added.uuid, False, "no")
    assert not acknowledged(scheduler, waiting)
    with pytest.raises(InstanceError, match="never given"):
        scheduler.handle_completion(waiting, stub.address, 5.0, "a lie")
    stub.release_tasks()
    assert scheduler.wait(waiting, timeout=60)["echo"] == {"page": 1}


@pytest.mark.parametrize("task_id", ["a/b?c&d", "é✓", "\n", "\x00", "..", "x" * 200, "' or 1=1 --"])
def test_ids_may_have_odd_characters(scheduler: SwarmPilotScheduler, instance: Start, task_id: str) -> None:
    scheduler.add_instance(instance().address)
    assert scheduler.schedule(request(task_id=task_id)).task_id == task_id
    scheduler.wait(task_id, timeout=60)
    assert scheduler.explain(task_id)["state"] == "completed"


async def reports_twice(http: web.Request) -> web.Response:
    task = await http.json()
    return web.json_response({"task_id": task["task_id"], "result": 1, "execution_time": 2.0})


def test_a_result_that_comes_twice_counts_once(scheduler: SwarmPilotScheduler, instance: Start) -> None:
    stub = instance(handler=reports_twice)
    scheduler.add_instance(stub.address)
    task = scheduler.schedule(request()).task_id
    assert scheduler.wait(task, timeout=60) == 1
    for name in (stub.address, "127.0.0.1:1", None):
        assert not scheduler.handle_completion(task, name, 9.0, "again")
    assert scheduler.wait(task) == 1
    assert_idle(scheduler)


@pytest.mark.parametrize("time_ms", [float("inf"), float("nan"), 1e300, -5.0])
def test_an_impossible_execution_time_spoils_no_prediction(
    scheduler: SwarmPilotScheduler, instance: Start, time_ms: float
) -> None:
    stub = instance(handler=acknowledge)
    scheduler.add_instance(stub.address)
    for page in range(5):
        task = scheduler.schedule(request(page)).task_id
        eventually(lambda task=task: acknowledged(scheduler, task))
        scheduler.handle_completion(task, stub.address, time_ms if page == 2 else 10.0, "x")
    prediction = scheduler._router._predict(
        next(iter(scheduler._router.instances.values())), Task("t", "ocr", 0, {}, {}, 0)
    )
    assert prediction is not None
    assert prediction.mean_ms == pytest.approx(10)
    assert_idle(scheduler)


# ---- load


def test_ten_thousand_tasks_wait_and_then_an_instance_registers(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    responses = scheduler.submit("ocr", [(None, {"page": page}, {}) for page in range(10_000)])
    assert scheduler.task_tracker.waiting == 10_000
    began = time.monotonic()
    stub = instance(replicas=16)
    scheduler.add_instance(stub.address)
    assert time.monotonic() - began < 30
    eventually(lambda: scheduler.task_tracker.counts()[TaskStatus.COMPLETED] > 1_000)
    second = instance(replicas=16)
    scheduler.add_instance(second.address)
    for one in responses:
        assert not isinstance(one, SchedulerError)
        scheduler.wait(one.task_id, timeout=60)
    assert len(stub.received) + len(second.received) == 10_000
    assert second.received
    assert_idle(scheduler)


def test_removal_registration_and_switches_of_strategy_under_load_lose_nothing(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    stubs = [instance(replicas=4, seconds=lambda task: 0.002) for _ in range(4)]
    for stub in stubs:
        scheduler.add_instance(stub.address)
    ids: list[str] = []
    stop = threading.Event()

    def submit() -> None:
        while not stop.is_set():
            ids.append(scheduler.schedule(request(len(ids), metadata={"idempotent": True})).task_id)
            time.sleep(0.0005)

    client = threading.Thread(target=submit)
    client.start()
    for round_ in range(24):
        stub = stubs[round_ % 3]
        scheduler.remove_instance(stub.address, drain=round_ % 2 == 0)
        scheduler.set_strategy(strategy_names()[round_ % len(strategy_names())], model="ocr" if round_ % 3 else None)
        scheduler.add_instance(stub.address)
    stop.set()
    client.join()
    for one in ids:
        scheduler.wait(one, timeout=60)
    assert scheduler.task_tracker.counts()[TaskStatus.COMPLETED] == len(ids) > 24
    eventually(lambda: not scheduler._router.tasks)
    assert_idle(scheduler)


def test_thousands_of_tasks_whose_instance_goes_down_move_while_others_are_served(
    scheduler: SwarmPilotScheduler, instance: Start
) -> None:
    first = instance()
    first.hold_tasks()
    scheduler.add_instance(first.address, concurrency=2)
    submitted = scheduler.submit("ocr", [(None, {"page": page}, {}) for page in range(3_000)])
    eventually(lambda: scheduler.queue_info()[0].length == 3_000)
    second = instance(replicas=16)
    scheduler.add_instance(second.address)
    first.stop()
    for one in submitted:
        assert not isinstance(one, SchedulerError)
        scheduler.wait(one.task_id, timeout=60)
    assert len(second.received) == 3_000
    assert_idle(scheduler)


# ---- the end


def test_who_waits_for_a_result_learns_that_the_scheduler_is_closed(instance: Start) -> None:
    scheduler = SwarmPilotScheduler()
    task = scheduler.schedule(request()).task_id
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            scheduler.wait(task)
        except SchedulerError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: scheduler.task_tracker._callbacks)
    scheduler.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert "closed" in str(errors[0])
    assert not isinstance(errors[0], InferenceError)
    with pytest.raises(SchedulerError, match="closed"):
        scheduler.wait(task)

"""The rules of deployments, with replicas that are no actors: start, replace, back off, scale, drain, restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from ray_multicluster_scheduler.app.client_api.in_cluster.replica import AsyncReplica, Replica
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InferenceError,
    InstanceError,
    SchedulerError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.serving import SchedulerRequest, SwarmPilotScheduler, deployment
from ray_multicluster_scheduler.serving.deployment import Deployments
from ray_multicluster_scheduler.serving.models import DeploymentOptions
from tests.support.eventually import eventually


class FakeReplica:
    """Answers with its id and the number of inputs, once ``answers`` is set."""

    cluster, attempt = "mac", 1

    def __init__(self, replica_id: str, changed: Callable[[], None]) -> None:
        self.id, self._changed = replica_id, changed
        self.state = TaskState.QUEUED
        self.answers = asyncio.Event()
        self.answers.set()
        self.died = asyncio.Event()
        self.calls: list[list[object]] = []

    def move(self, state: TaskState) -> None:
        self.state = state
        self._changed()

    def die(self) -> None:
        """Its calls fail before its item shows that it has ended."""
        self.died.set()

    def reason(self) -> str:
        return f"because it is {self.state}"

    async def call(self, data: bytes) -> bytes:
        inputs = json.loads(data)
        self.calls.append(inputs)
        waits = [asyncio.ensure_future(one.wait()) for one in (self.answers, self.died)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        if self.died.is_set():
            problem = InstanceError("its actor died")
            problem.gone = True
            raise problem
        return json.dumps([{"error": "no"} if one == "bad" else {"result": self.id} for one in inputs]).encode()

    def end(self) -> None:
        self.move(TaskState.CANCELLED)


class FakeHost:
    """Replicas run as soon as they are started, unless ``waits``."""

    def __init__(self) -> None:
        self.replicas: dict[str, FakeReplica] = {}
        self.saved: list[tuple[int, list[str]]] = []
        self.waits = self.forgotten = False
        self.refusal: Exception | None = None
        self.refusal_after_start = self.refusal_to_find = False

    def new_id(self) -> str:
        return f"actor-{len(self.saved)}"

    async def start(self, replica_id: str, changed: Callable[[], None]) -> FakeReplica:
        assert replica_id in self.saved[-1][1], "written before it is started"
        if self.refusal is not None:
            raise self.refusal
        made = self.replicas[replica_id] = FakeReplica(replica_id, changed)
        if not self.waits:
            made.move(TaskState.RUNNING)
        if self.refusal_after_start:
            raise KeyError("an answer without an id")
        return made

    async def find(self, replica_id: str, changed: Callable[[], None]) -> FakeReplica | None:
        if self.refusal_to_find:
            raise OSError("the store cannot be read")
        found = self.replicas.get(replica_id)
        if found is not None:
            found._changed = changed
        return found

    def save(self, options: DeploymentOptions, replica_ids: Sequence[str], *, deleted: bool) -> None:
        self.saved.append((options.replicas, list(replica_ids)))

    def forget(self) -> None:
        self.forgotten = True

    def living(self) -> list[FakeReplica]:
        return [one for one in self.replicas.values() if not one.state.terminal]


class World:
    def __init__(self) -> None:
        self.scheduler = SwarmPilotScheduler(loop=asyncio.get_running_loop(), health_interval_s=0.05)
        self.deployments, self.host = Deployments(self.scheduler), FakeHost()

    async def deploy(self, replicas: int = 2, ids: Sequence[str] = (), **options: float) -> deployment.Deployment:
        made = DeploymentOptions.model_validate({"name": "ocr", "replicas": replicas, **options})
        if ids:
            return self.deployments.resume(made, self.host, ids)
        return await self.deployments.add(made, self.host)

    async def healthy(self, number: int) -> None:
        await eventually(lambda: sum(row.healthy for row in self.scheduler.queue_info("ocr")) == number)

    def request(self, data: object = None) -> str:
        values = {"model_type": "ocr", "input_data": data}
        return self.scheduler.schedule(SchedulerRequest.model_validate(values)).task_id

    async def result(self, task_id: str) -> object:
        return await self.scheduler.wait_async(task_id, 30)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        await made.deployments.close()
        await made.scheduler.close_async()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "_FIRST_PAUSE_S", 0.02)


async def test_requests_reach_replicas_once_they_run() -> None:
    async with world() as one:
        one.host.waits = True
        made = await one.deploy()
        task = one.request()
        await eventually(lambda: len(one.host.replicas) == 2)
        assert made.status().state == "STARTING"
        assert [row.reason for row in made.status().instances] == ["because it is QUEUED"] * 2
        first, second = one.host.replicas.values()
        first.move(TaskState.RUNNING)
        assert await one.result(task) == first.id
        second.move(TaskState.RUNNING)
        await one.healthy(2)
        status = made.status()
        assert (status.state, status.running) == ("RUNNING", 2)
        with pytest.raises(InferenceError, match="no"):
            await one.result(one.request("bad"))
        with pytest.raises(ConfigurationError, match="There is a deployment 'ocr' already"):
            await one.deploy()


async def test_a_dead_replica_is_replaced_and_its_requests_are_repeated() -> None:
    async with world() as one:
        made = await one.deploy(1)
        await one.healthy(1)
        (first,) = one.host.living()
        first.answers.clear()
        task = one.request()
        await eventually(lambda: first.calls)
        first.die()
        await one.healthy(0)
        await asyncio.sleep(0.1)
        assert len(first.calls) == 1, "it is not asked again"
        first.move(TaskState.FAILED)
        answer = await one.result(task)
        (second,) = one.host.living()
        assert answer == second.id != first.id
        assert first.id in made.problem
        assert "because it is FAILED" in made.problem


async def test_what_fails_again_and_again_is_started_after_longer_and_longer_pauses() -> None:
    async with world() as one:
        made = await one.deploy(1)
        pauses = []
        for number in range(1, 5):
            await eventually(lambda number=number: len(one.host.replicas) == number and one.host.living())
            one.host.living()[0].move(TaskState.FAILED)
            await eventually(lambda number=number: made._failures == number)
            pauses.append(made._pause_s)
        assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16])


async def test_one_that_served_for_long_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "_FIRST_PAUSE_S", 1000.0)
    monkeypatch.setattr(deployment, "STABLE_S", 0.0)
    async with world() as one:
        await one.deploy(1)
        await one.healthy(1)
        one.host.living()[0].move(TaskState.FAILED)
        await eventually(lambda: len(one.host.replicas) == 2)


async def test_a_refused_submission_is_tried_again() -> None:
    async with world() as one:
        one.host.refusal = SchedulerError("The queue is full.")
        made = await one.deploy(1)
        await eventually(lambda: made._failures >= 2)
        assert made.status().problem == "The queue is full."
        one.host.refusal = None
        await one.healthy(1)


async def test_an_unexpected_error_is_shown_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deployment, "_FIRST_PAUSE_S", 0.05)
    async with world() as one:
        one.host.refusal_after_start = one.host.refusal_to_find = True
        made = await one.deploy(replicas=1)
        await eventually(lambda: "OSError: the store cannot be read" in made.status().problem)
        assert made.status().state == "RETRYING"
        assert "KeyError: 'an answer without an id'" in caplog.text
        one.host.refusal_after_start = one.host.refusal_to_find = False
        await one.healthy(1)
        assert len(one.host.replicas) == 1, "the replica that was submitted was found, and no second one started"
        assert made.status().state == "RUNNING"
        one.host.refusal = OSError("no space left")
        made.scale(2)
        await eventually(lambda: "OSError: no space left" in made.status().problem)
        assert one.deployments.get("ocr") is made
        one.host.refusal = None
        await one.healthy(2)
        for uuid in [row.ti_uuid for row in one.scheduler.queue_info("ocr")]:
            one.scheduler.remove_instance(uuid)  # by an operator
        await one.deployments.delete("ocr")
        assert one.host.living() == []


async def test_replicas_of_an_earlier_process_are_sought_until_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "_FIRST_PAUSE_S", 0.05)
    async with world() as one:
        await one.host.find("none", lambda: None)
        one.host.saved.append((1, ["earlier"]))
        await one.host.start("earlier", lambda: None)
        one.host.refusal_to_find = True
        made = await one.deploy(replicas=1, ids=["earlier"])
        await eventually(lambda: "OSError: the store cannot be read" in made.status().problem)
        one.host.refusal_to_find = False
        await one.healthy(1)
        assert list(one.host.replicas) == ["earlier"]


async def test_scaling_down_drains_the_newest_and_first_those_that_do_not_serve() -> None:
    async with world() as one:
        made = await one.deploy(2)
        await one.healthy(2)
        one.host.waits = True
        made.scale(3)
        await eventually(lambda: len(one.host.living()) == 3)
        oldest, busy, waiting = one.host.living()
        made.scale(2)
        await eventually(lambda: waiting.state is TaskState.CANCELLED)
        for replica in (oldest, busy):
            replica.answers.clear()
        tasks = [one.request(), one.request()]
        await eventually(lambda: oldest.calls and busy.calls)
        made.scale(1)
        await eventually(lambda: made.status().instances[1].state == "DRAINING")
        await asyncio.sleep(0.05)
        assert busy.state is TaskState.RUNNING, "what runs there finishes"
        oldest.answers.set()
        busy.answers.set()
        assert {await one.result(task) for task in tasks} == {oldest.id, busy.id}
        await eventually(lambda: one.host.living() == [oldest])
        assert one.host.saved[-1] == (1, [oldest.id])


async def test_a_deleted_one_drains_and_is_forgotten() -> None:
    async with world() as one:
        await one.deploy(2)
        await one.healthy(2)
        await one.deployments.delete("ocr")
        assert one.host.living() == []
        assert one.host.forgotten
        assert one.scheduler.queue_info() == []
        with pytest.raises(UnknownItemError):
            one.deployments.get("ocr")


async def test_the_next_process_finds_its_replicas_and_starts_no_more() -> None:
    async with world() as one:
        await one.deploy(2)
        await one.healthy(2)
        host = one.host
    known = list(host.replicas)
    assert [replica.state for replica in host.living()] == [TaskState.RUNNING] * 2, "they outlive the process"
    async with world() as again:
        again.host = host
        await again.deploy(2, [*known, "actor-never-submitted"])
        await again.healthy(2)
        assert list(host.replicas) == known
        assert await again.result(again.request()) in known


async def test_an_unreachable_replica_gets_no_requests() -> None:
    async with world() as one:
        await one.deploy(2)
        await one.healthy(2)
        lost, other = one.host.living()
        lost.move(TaskState.LOST)
        await one.healthy(1)
        assert await one.result(one.request()) == other.id
        lost.move(TaskState.RUNNING)
        await one.healthy(2)
        assert len(one.host.replicas) == 2


async def test_batches_fill_up_wait_and_do_not_overlap() -> None:
    async with world() as one:
        await one.deploy(1, max_batch=4, batch_wait_ms=1000.0)
        await one.healthy(1)
        (replica,) = one.host.living()
        replica.answers.clear()
        tasks = [one.request(number) for number in range(10)]
        await eventually(lambda: replica.calls)
        assert replica.calls == [[0, 1, 2, 3]], "the next batch waits until this one has ended"
        replica.answers.set()
        assert [await one.result(task) for task in tasks] == [replica.id] * 10
        assert replica.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class _Double:
    def __init__(self, factor: int = 2) -> None:
        self._factor = factor

    def infer(self, value: int) -> object:
        if value < 0:
            raise ValueError("it is negative")
        return object() if value == 0 else value * self._factor


class _Lengths:
    async def __call__(self, texts: list[str]) -> list[int]:
        return [len(one) for one in texts if one != "lost"]


def test_the_actor_passes_one_input_and_reports_errors() -> None:
    replica = Replica(_Double, (), {"factor": 3}, batches=False)
    assert json.loads(replica.handle(b"[14]")) == [{"result": 42}]
    assert json.loads(replica.handle(b"[-1]")) == [{"error": "ValueError: it is negative"}]
    assert "object, which is not JSON" in json.loads(replica.handle(b"[0]"))[0]["error"]


async def test_the_actor_passes_a_batch_to_an_async_class() -> None:
    replica = AsyncReplica(_Lengths, (), {}, batches=True)
    assert json.loads(await replica.handle(b'["a", "bc"]')) == [{"result": 1}, {"result": 2}]
    errors = json.loads(await replica.handle(b'["a", "lost"]'))
    assert [one["error"] for one in errors] == ["ValueError: it was given 2 inputs, and returned 1 results"] * 2

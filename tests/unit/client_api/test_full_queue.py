"""Over ``max_queue``, the submission itself raises QueueFullError, and what could start at once is not counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import QueueFullError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.notices import unread_failures
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.client_api.actor_plane import ActorPlane, Counter
from tests.unit.client_api.control_plane import ControlPlane
from tests.unit.lifecycle.driver import job, snapshot, task
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("leak_check")
CPUS, MAX_QUEUE = 8, 3


@pytest.fixture
def plane() -> Iterator[ActorPlane]:
    with ActorPlane(max_queue=MAX_QUEUE) as plane:
        yield plane


@pytest.fixture
def scheduler(plane: ActorPlane) -> UnifiedScheduler:
    scheduler = UnifiedScheduler(plane.runtime.config)
    scheduler._runtime, scheduler._submission, scheduler._actors = plane.runtime, plane.submission, plane.actors
    return scheduler


def accepted(plane: ControlPlane, items: list[TaskDescription]) -> list[str]:
    """The ids of the submissions that did not raise."""
    ids = []
    for item in items:
        with suppress(QueueFullError):
            ids.append(plane.runtime.submit(item).id)
    return ids


def many(plane: ControlPlane, number: int = 30) -> list[TaskDescription]:
    return [plane.with_payload(task(f"t{one}")) for one in range(number)]


def test_all_over_the_limit_raise(plane: ActorPlane) -> None:
    ids = accepted(plane, many(plane))
    assert ids == [f"t{number}" for number in range(CPUS + MAX_QUEUE)]
    assert [one.id for one in plane.runtime.unfinished()] == ids
    for item in plane.runtime.unfinished():
        plane.runtime.cancel(item.id, "enough", force=True)
        assert item.wait(60) is not None
    assert len(plane.runtime.payload_cache) == 0


def test_many_threads_together_fill_it_exactly(plane: ActorPlane) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = [one for found in pool.map(lambda item: accepted(plane, [item]), many(plane, 60)) for one in found]
    assert len(ids) == CPUS + MAX_QUEUE
    assert all(plane.runtime.items.live[one].outcome is None for one in ids)


def test_a_repeated_id_is_the_first_item_and_room_is_found_again(plane: ActorPlane) -> None:
    def job_of(name: str) -> TaskDescription:
        return replace(job(name), requirements={"CPU": 1.0})

    ids = accepted(plane, [job_of(f"j{number}") for number in range(CPUS + MAX_QUEUE)])
    assert plane.runtime.submit(job_of(ids[-1])).id == ids[-1]
    with pytest.raises(QueueFullError):
        plane.runtime.submit(job_of("new"))
    last = plane.runtime.items.live[ids[-1]]
    plane.runtime.cancel(ids[-1], "enough", force=False)
    assert last.wait(60) is not None
    assert plane.runtime.submit(job_of("new")).id == "new"


def test_item_that_can_start_at_once_is_accepted(plane: ActorPlane) -> None:
    ids = accepted(plane, [task("wide", cpus=7), *(task(f"w{number}", cpus=7) for number in range(MAX_QUEUE))])
    assert len(ids) == 1 + MAX_QUEUE
    assert plane.runtime.submit(task("small")).id == "small"
    with pytest.raises(QueueFullError):
        plane.runtime.submit(task("after", after=("wide",)))
    with pytest.raises(QueueFullError):
        plane.runtime.submit(task("another"))


def test_every_kind_raises(plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
    first = scheduler.submit_task_async(print, resource_requirements={"CPU": CPUS})
    waiting = [scheduler.submit_task_async(print, resource_requirements={"CPU": CPUS}) for _ in range(MAX_QUEUE)]
    with pytest.raises(QueueFullError):
        scheduler.submit_task(print)
    with pytest.raises(QueueFullError):
        scheduler.submit_task_async(print, (first,))
    for submit in (scheduler.submit_job, scheduler.submit_job_async):
        with pytest.raises(QueueFullError):
            submit("true", resource_requirements={"CPU": 1})
    with pytest.raises(QueueFullError):
        scheduler.submit_actor_async(Counter, name="n")
    with pytest.raises(QueueFullError):
        scheduler.submit_gang_async([print, print])
    with FleetExecutor(scheduler) as pool:
        with pytest.raises(QueueFullError):
            pool.submit(print)
        with pytest.raises(QueueFullError):
            list(pool.map(print, range(3)))
    waiting[0].cancel()
    assert waiting[0].exception(60) is not None
    assert scheduler.submit_actor_async(Counter, name="n").accepted(60)


def test_actors_that_end_while_another_waits_for_room(plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
    """The registry of actors must not keep the control plane from reporting their ends."""
    actors = [scheduler.submit_actor_async(Counter, name=f"n{number}") for number in range(CPUS)]
    for actor in actors:
        actor.kill()
    for number in range(CPUS + MAX_QUEUE):
        scheduler.submit_actor_async(Counter, resource_requirements={"CPU": CPUS}, name=f"n{number}")
        if number == MAX_QUEUE:
            break
    with pytest.raises(QueueFullError):
        scheduler.submit_actor_async(Counter, resource_requirements={"CPU": CPUS})


class Unasked(ControlPlane):
    """Nobody has seen the cluster yet, and the machine's own request is not answered."""

    def refresh(self, cluster: str) -> None: ...


def test_a_cluster_that_nobody_has_seen_is_asked_before_a_submission_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def check(name: str) -> None:
        asked.append(name)
        plane.post(events.SnapshotTaken(snapshot(name, plane.runtime.clock.now(), CPUS)))

    with Unasked(max_queue=MAX_QUEUE) as plane:
        monkeypatch.setattr(plane.runtime.health, "check", check)
        assert len(accepted(plane, many(plane))) == CPUS + MAX_QUEUE
        assert asked == ["mac"]


def test_a_cluster_is_asked_once_for_a_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def check(name: str) -> None:
        asked.append(name)

    with Unasked(max_queue=MAX_QUEUE) as plane:
        monkeypatch.setattr(plane.runtime.health, "check", check)
        assert len(accepted(plane, many(plane, MAX_QUEUE + 1))) == MAX_QUEUE
        assert len(asked) <= 2, "once for the one with room, if it was not handled in time, and once for the other"


def test_a_submission_that_finds_room_does_not_wait_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with ActorPlane(max_queue=100) as plane, monkeypatch.context() as patch:
        patch.setattr(Runtime, "run", lambda *_: pytest.fail("it waited"))
        assert len(accepted(plane, many(plane))) == 30
        patch.undo()


# ---- through a service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", max_queue=1) as service:
        yield service


def fill(scheduler: UnifiedScheduler) -> None:
    for _ in range(2):
        assert scheduler.submit_task_async(print, resource_requirements={"CPU": CPUS}).accepted()


def test_the_handle_and_the_next_submission_raise(service: HttpService) -> None:
    with UnifiedScheduler(address=service.address) as scheduler:
        fill(scheduler)
        refused = scheduler.submit_task_async(print)
        with pytest.raises(QueueFullError) as caught:
            refused.accepted()
        assert caught.value.task_id == refused.id
        unread = scheduler.submit_task_async(print)
        assert unread._item.wait(60) is not None
        with pytest.raises(QueueFullError) as caught:
            scheduler.submit_task_async(print)
        assert caught.value.task_id == unread.id, "the program had not asked for it"
        with pytest.raises(QueueFullError):
            scheduler.submit_task(print)
        with pytest.raises(QueueFullError):
            scheduler.submit_job("true", resource_requirements={"CPU": 1})
        with pytest.raises(QueueFullError):
            scheduler.submit_actor_async(Counter).accepted()
        assert len(service.get("/api/v1/items")["items"]) == 2, "what is refused is no item"


def test_of_many_sent_at_once_each_refused_handle_raises(service: HttpService) -> None:
    with UnifiedScheduler(address=service.address) as scheduler:
        handles = [scheduler.submit_task_async(print) for _ in range(30)]
        refused = []
        for handle in handles:
            try:
                assert handle.accepted(60)
            except QueueFullError as error:
                refused.append(error.task_id)
        assert refused == [one.id for one in handles[CPUS + 1 :]], "what can start at once is not counted"
        assert not any(one in unread_failures for one in refused)


def test_over_http_it_is_429(service: HttpService) -> None:
    with UnifiedScheduler(address=service.address) as scheduler:
        fill(scheduler)
        status, answer = service.ask(
            "POST",
            "/api/v1/items",
            {
                "task": {
                    "id": "j",
                    "kind": "job",
                    "name": "j",
                    "requirements": {"CPU": 1},
                    "job": {"entrypoint": "true"},
                }
            },
        )
    assert (status, answer["code"], answer["task_id"]) == (429, "QUEUE_FULL", "j")


def test_each_refusal_that_was_not_read_is_raised(service: HttpService) -> None:
    """Three are refused in one batch, and the program reads the newest only."""
    with UnifiedScheduler(address=service.address) as scheduler:
        fill(scheduler)
        gate = threading.Event()
        assert scheduler._runtime is not None
        scheduler._runtime.call_soon(gate.wait, 60)
        refused = [scheduler.submit_task_async(print) for _ in range(3)]
        gate.set()
        assert all(one._item.wait(60) is not None for one in refused)
        assert isinstance(refused[2].exception(), QueueFullError)
        raised = []
        for _ in range(2):
            with pytest.raises(QueueFullError) as caught:
                scheduler.submit_task_async(print)
            raised.append(caught.value.task_id)
        assert raised == [one.id for one in refused[:2]]
        assert not any(one.id in unread_failures for one in refused)

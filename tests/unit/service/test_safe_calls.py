"""Answers that are lost on their way: what is safe is asked again, what is not is not; and waits outlast restarts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ray_multicluster_scheduler.app.client_api.async_scheduler import AsyncScheduler
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import runtime_of
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path / "state", auth="token") as service:
        yield service


@pytest.fixture
def scheduler(service: HttpService) -> Iterator[UnifiedScheduler]:
    scheduler = UnifiedScheduler(address=service.address, token=service.token)
    yield scheduler
    scheduler.shutdown()


class LostAnswers:
    """The service does what it is asked; the first answer to a request to a path with this end gets lost."""

    def __init__(self, scheduler: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
        scheduler._started()
        self._session = runtime_of(scheduler)._client._session
        self._real = self._session.request
        self.asked: list[str] = []
        self._end = "/"
        monkeypatch.setattr(type(self._session), "request", lambda _, *args, **values: self._request(*args, **values))

    def of(self, end: str) -> None:
        self._end = end
        self.asked.clear()

    def times(self, end: str) -> int:
        return sum(one.endswith(end) for one in self.asked)

    @asynccontextmanager
    async def _request(self, method: str, url: str, **values: Any) -> AsyncIterator[Any]:
        path = url.partition("?")[0]
        async with self._real(method, url, **values) as answer:
            self.asked.append(path)
            if path.endswith(self._end) and self.times(self._end) == 1:
                await answer.read()
                raise aiohttp.ServerDisconnectedError
            yield answer


@pytest.fixture
def lost(scheduler: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    return LostAnswers(scheduler, monkeypatch)


def running(handle: TaskHandle) -> TaskHandle:
    until(lambda: handle.state is TaskState.RUNNING)
    return handle


def finish(service: HttpService, handle: TaskHandle, value: object) -> None:
    service.plane.end(CallResult(handle.id, 1, "succeeded", pickling.dumps(value)))


def test_a_submission_whose_answer_was_lost_is_sent_again_and_runs_once(
    service: HttpService, scheduler: UnifiedScheduler, lost: LostAnswers
) -> None:
    lost.of("/items/batch")
    handle = running(scheduler.submit_task_async(len, ("a",)))
    assert lost.times("/items/batch") == 2
    finish(service, handle, 1)
    assert handle.result(20) == 1
    assert [one.task_id for one in service.plane.placed] == [handle.id]


SAFE: list[tuple[str, Callable[[UnifiedScheduler, str], object]]] = [
    ("/explain", lambda scheduler, task: scheduler.explain(task)),
    ("/cancel", lambda scheduler, task: scheduler.cancel(task)),
    ("/hold", lambda scheduler, task: scheduler.hold(task)),
    ("/release", lambda scheduler, task: scheduler.release(task)),
    ("/priority", lambda scheduler, task: scheduler.set_priority(task, 3)),
    ("/pause", lambda scheduler, _: scheduler.pause_queue(owner="alice")),
    ("/resume", lambda scheduler, _: scheduler.resume_queue(owner="alice")),
    ("/owners/alice", lambda scheduler, _: scheduler.set_owner_limits("alice", weight=2)),
    ("/owners/alice", lambda scheduler, _: scheduler.reset_owner_limits("alice")),
    ("/cordon", lambda scheduler, _: scheduler.cordon("mac")),
    ("/uncordon", lambda scheduler, _: scheduler.uncordon("mac")),
    ("/clusters", lambda scheduler, _: scheduler.list_clusters()),
    ("/plan", lambda scheduler, _: scheduler.plan()),
    ("/jobs", lambda scheduler, _: scheduler.list_jobs()),
]


@pytest.mark.parametrize(("end", "ask"), SAFE, ids=[end for end, _ in SAFE])
def test_idempotent_requests_are_retried(
    end: str, ask: Callable[[UnifiedScheduler, str], object], scheduler: UnifiedScheduler, lost: LostAnswers
) -> None:
    handle = running(scheduler.submit_task_async(len, ("a",)))
    lost.of(end)
    ask(scheduler, handle.id)
    until(lambda: lost.times(end) == 2)


def test_other_requests_are_sent_once(service: HttpService, scheduler: UnifiedScheduler, lost: LostAnswers) -> None:
    """Work that went there after the first time would be lost by the second."""
    running(scheduler.submit_task_async(len, ("a",), lost_retries=0))
    lost.of("/declare-dead")
    with pytest.raises(ServiceUnavailableError, match="does not answer"):
        scheduler.declare_dead("mac", force=True)
    assert lost.times("/declare-dead") == 1


@pytest.mark.parametrize("how", ["result", "get", "wait", "exception"])
def test_a_waiting_client_receives_an_end_after_a_restart_in_the_middle(
    how: str, service: HttpService, scheduler: UnifiedScheduler
) -> None:
    one = running(scheduler.submit_task_async(len, ("a",)))
    verbs: dict[str, Callable[[], object]] = {
        "result": lambda: one.result(60),
        "get": lambda: scheduler.get([one], 60)[0],
        "wait": lambda: scheduler.wait([one], timeout=60)[0][0].result(0),
        "exception": lambda: one.exception(60) or one.result(0),
    }
    reported: list[object] = []
    waiting = threading.Thread(target=lambda: reported.append(verbs[how]()))
    waiting.start()
    service.stop()
    waiting.join(0.3)
    assert waiting.is_alive()
    service.start()
    until(lambda: service.plane.adopted)
    finish(service, one, 42)
    waiting.join(30)
    assert reported == [42]


async def test_coroutines_do_so_too(service: HttpService, scheduler: UnifiedScheduler) -> None:
    twin = AsyncScheduler(scheduler=scheduler)
    one = await twin.submit_task_async(len, ("a",))
    await asyncio.to_thread(running, one)

    async def awaits() -> Any:
        return await one

    waiting = [asyncio.create_task(awaits()), asyncio.create_task(twin.get([one]))]
    await asyncio.to_thread(service.restart)
    await asyncio.to_thread(until, lambda: service.plane.adopted)
    await asyncio.to_thread(finish, service, one, 42)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [42, [42]]
    twin._threads.close()

"""Following the output of jobs: over attempts, to the end, and without a trace of readers that stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, UnknownItemError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime import job_logs
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job

pytestmark = pytest.mark.usefixtures("leak_check")


class Dashboard:
    """Plays the cluster: pieces per Ray job; "…" stands for silence without end."""

    def __init__(self, **pieces: list[str | Exception]) -> None:
        self.pieces = {name.replace("_", "-"): some for name, some in pieces.items()}
        self.open = 0
        self.closed = 0

    def client(self, cluster: str) -> Dashboard:
        assert cluster == "mac"
        return self

    async def job_info(self, ray_id: str) -> dict[str, str]:
        return {"status": "RUNNING"}

    async def job_logs(self, ray_id: str) -> str:
        return f"all of {ray_id}"

    async def tail_job_logs(self, ray_id: str) -> AsyncIterator[str]:
        self.open += 1
        try:
            for piece in self.pieces[ray_id]:
                if isinstance(piece, Exception):
                    raise piece
                if piece == "…":
                    await asyncio.sleep(1000)
                yield piece
        finally:
            self.closed += 1

    async def close(self) -> None:
        """The pool that this one stands in for has nothing open."""


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


def use(plane: ControlPlane, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> Dashboard:
    monkeypatch.setattr(plane.runtime, "clients", dashboard)
    return dashboard


def test_the_whole_output(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    use(plane, Dashboard(), monkeypatch)
    assert plane.job("j1", cpus=8).logs() == "all of j1-cp1-1"
    assert plane.submit(job("j2", cpus=8)).logs() == "", "it waits"
    with pytest.raises(UnknownItemError):
        job_logs.read_all(plane.runtime, "j3")


def test_following_over_attempts_until_the_job_is_over(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = use(plane, Dashboard(j1_cp1_1=["a", "b"], j1_cp1_2=["c"]), monkeypatch)
    handle = plane.job("j1", retries=1)
    pieces = handle.follow_logs()
    assert [next(pieces), next(pieces)] == ["a", "b"]
    plane.fail(handle)
    assert next(pieces) == "c"
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, pieces)
        plane.finish(handle, 2)
        assert rest.result(60) == []
    assert list(handle.follow_logs()) == ["c"], "what is over is reported again, from the newest attempt"
    assert dashboard.open == dashboard.closed == 3


def test_following_a_job_that_ends_without_being_placed(plane: ControlPlane) -> None:
    plane.job("j1", cpus=8)
    waiting = plane.submit(job("j2", cpus=8))
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(list, waiting.follow_logs())
        until(lambda: waiting.state is TaskState.QUEUED)
        waiting.cancel()
        assert following.result(60) == []


def test_a_reader_that_stops_leaves_nothing_open(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = use(plane, Dashboard(j1_cp1_1=["a", "…"]), monkeypatch)
    for piece in plane.job("j1").follow_logs():
        assert piece == "a"
        break
    until(lambda: dashboard.closed == dashboard.open == 1)
    assert not plane.runtime._pending


@pytest.mark.parametrize("error", [ClusterConnectionError("gone"), ValueError("a defect of ours")])
def test_every_error_reaches_the_reader(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    use(plane, Dashboard(j1_cp1_1=["a", error]), monkeypatch)
    pieces = plane.job("j1").follow_logs()
    assert next(pieces) == "a"
    with pytest.raises(type(error), match=str(error)):
        next(pieces)


def test_a_shutdown_ends_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = ControlPlane()
    dashboard = use(plane, Dashboard(j1_cp1_1=["a", "…"]), monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        seen: list[str] = []
        running = pool.submit(seen.extend, plane.job("j1", cpus=8).follow_logs())
        waiting = pool.submit(list, plane.submit(job("j2", cpus=8)).follow_logs())
        until(lambda: seen)
        assert dashboard.open
        plane.runtime.close()
        running.result(60)
        assert seen == ["a"]
        assert waiting.result(60) == []
    assert dashboard.closed == 1


def test_an_interrupted_reader_leaves_nothing_open(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C comes while it waits for the next piece."""
    import signal
    import threading

    dashboard = use(plane, Dashboard(j1_cp1_1=["…"]), monkeypatch)
    handle = plane.job("j1")
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        until(lambda: dashboard.open)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(handle.follow_logs())
    thread.join()
    until(lambda: dashboard.closed == 1)

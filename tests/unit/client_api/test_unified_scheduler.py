"""UnifiedScheduler as a program uses it: again after its end, from many threads, and without being held."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api import execution_context, program, unified_scheduler
from ray_multicluster_scheduler.app.client_api.submit_task import cancel
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    NoHealthyClusterError,
    TaskCancelledError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.model import TaskState
from tests.unit.client_api.actor_plane import Counter
from tests.unit.client_api.control_plane import CLOSED_PORT, until

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def scheduler() -> Iterator[UnifiedScheduler]:
    """Nobody listens where its cluster should be: what is submitted fails at once."""
    scheduler = UnifiedScheduler(clusters=[{"name": "mac", "dashboard": CLOSED_PORT}])
    yield scheduler
    scheduler.shutdown()


@pytest.fixture
def silent_port() -> Iterator[str]:
    """A listener that never answers: submissions wait."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def waiting(silent_port: str) -> Iterator[UnifiedScheduler]:
    scheduler = UnifiedScheduler(clusters=[{"name": "mac", "dashboard": silent_port}])
    yield scheduler
    scheduler.shutdown()


class TestAgainAfterShutdown:
    def test_no_id_is_issued_twice(self, scheduler: UnifiedScheduler) -> None:
        ids = []
        for _ in range(3):
            ids += [scheduler.submit_job_async("ls").id, scheduler.submit_task_async(print).id]
            scheduler.shutdown()
        assert len(set(ids)) == 6
        assert len({one.split("-")[1] for one in ids}) == 3, "each time it is another control plane"

    def test_a_key_means_nothing_to_the_next_one(self, scheduler: UnifiedScheduler) -> None:
        first = scheduler.submit_task_async(print, idempotency_key="k")
        assert scheduler.submit_task_async(print, idempotency_key="k").id == first.id
        scheduler.shutdown()
        second = scheduler.submit_task_async(len, idempotency_key="k")
        assert second.id != first.id
        with pytest.raises(NoHealthyClusterError, match=second.id):
            second.result(60)

    def test_handles_start_nothing(self, scheduler: UnifiedScheduler) -> None:
        handle, job = scheduler.submit_task_async(print), scheduler.submit_job_async("ls")
        assert isinstance(handle.exception(5), NoHealthyClusterError)
        assert isinstance(job.exception(5), NoHealthyClusterError)
        scheduler.shutdown()
        called = threading.Event()
        for one in (handle, job):
            one.cancel()
            assert one.explain()["code"] == "NO_HEALTHY_CLUSTER"
            assert one.logs() == ""
            assert list(one.follow_logs()) == []
            one.add_done_callback(lambda _: called.set())
        assert called.wait(60)
        assert scheduler._runtime is None

    def test_nor_do_questions_by_id(self, scheduler: UnifiedScheduler) -> None:
        job_id = scheduler.submit_job_async("ls").id
        scheduler.shutdown()
        for ask in (
            scheduler.cancel,
            scheduler.explain,
            scheduler.job_info,
            scheduler.job_logs,
            scheduler.handle,
            lambda one: list(scheduler.follow_job_logs(one)),
        ):
            with pytest.raises(UnknownItemError, match=job_id):
                ask(job_id)
        assert (scheduler.list_jobs(), scheduler.unfinished(), scheduler._runtime) == ([], [], None)


class TestTheEnd:
    def test_waiting_items_are_cancelled_and_reported(
        self, waiting: UnifiedScheduler, capsys: pytest.CaptureFixture[str]
    ) -> None:
        handle = waiting.submit_job_async("ls")
        until(lambda: handle.state is TaskState.QUEUED)
        assert waiting.unfinished() == [handle._item]
        waiting.shutdown()
        with pytest.raises(TaskCancelledError, match=handle.id):
            handle.result(0)
        assert f"{handle.id} was QUEUED: CANCELLED" in capsys.readouterr().err
        waiting.shutdown()

    def test_an_error_in_the_with_block_cancels(self, silent_port: str) -> None:
        handles = []

        def program() -> None:
            with UnifiedScheduler(clusters=[{"name": "mac", "dashboard": silent_port}]) as scheduler:
                handles.append(scheduler.submit_job_async("ls"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            program()
        assert handles[0].state is TaskState.CANCELLED

    def test_the_end_of_the_with_block_waits(self, scheduler: UnifiedScheduler) -> None:
        with scheduler:
            handle = scheduler.submit_task_async(print)
        assert handle.done()

    def test_two_threads_end_it(self, waiting: UnifiedScheduler) -> None:
        handle = waiting.submit_job_async("ls")
        draining = threading.Thread(target=waiting.shutdown, kwargs={"drain": True})
        draining.start()
        waiting.shutdown()
        draining.join(60)
        assert not draining.is_alive()
        assert handle.state is TaskState.CANCELLED

    def test_one_that_nobody_holds_is_ended_with_the_program(self, silent_port: str) -> None:
        handle = UnifiedScheduler(clusters=[{"name": "mac", "dashboard": silent_port}]).submit_job_async("ls")
        (held,) = program.running
        assert held.unfinished() == [handle._item]
        program.stop_all()
        assert handle.state is TaskState.CANCELLED
        assert not program.running

    def test_the_exit_drains_unless_the_program_was_interrupted(
        self, waiting: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(program, "_interrupted", threading.Event())
        handle = waiting.submit_job_async("ls")
        exiting = threading.Thread(target=program._end_with_the_program)
        exiting.start()
        exiting.join(0.2)
        assert exiting.is_alive(), "it waits"
        handle.cancel()
        exiting.join(60)
        assert not exiting.is_alive()
        other = waiting.submit_job_async("ls")
        program.end_without_draining()
        program._end_with_the_program()
        assert other.state is TaskState.CANCELLED


def test_only_items_can_be_cancelled(waiting: UnifiedScheduler) -> None:
    handle = waiting.submit_job_async("ls")
    for wrong in (None, [handle], 5):
        for cancel_it in (waiting.cancel, cancel):
            with pytest.raises(ConfigurationError, match="neither a handle nor an id.*pass a handle or an id"):
                cancel_it(wrong)
    assert not handle.done()
    waiting.cancel(handle)
    with pytest.raises(TaskCancelledError):
        handle.result(60)


def test_an_actor_that_is_cancelled_by_its_id_gives_its_name_away_at_once(waiting: UnifiedScheduler) -> None:
    first = waiting.submit_actor_async(Counter, name="tally")
    runtime, go_on = waiting._runtime, threading.Event()
    assert runtime is not None
    runtime.call_soon(go_on.wait, 20)  # nothing ends meanwhile
    waiting.cancel(first.id)
    second = waiting.submit_actor_async(Counter, name="tally")
    assert not first._item.done()
    assert waiting.get_actor("tally") is second
    go_on.set()
    until(first._item.done)
    assert first.state is TaskState.CANCELLED
    assert waiting.get_actor("tally") is second


def test_a_refused_job_is_an_error_at_once(scheduler: UnifiedScheduler) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        scheduler.submit_job("ls", preferred_cluster="nowhere")


def test_the_shared_one(tmp_path: Path) -> None:
    config = tmp_path / "clusters.yaml"
    config.write_text(f"clusters: [{{name: mac, dashboard: '{CLOSED_PORT}'}}]")
    shared = unified_scheduler.initialize_scheduler_environment(config)
    try:
        assert unified_scheduler.get_unified_scheduler() is shared
        assert shared.submit_task_async(print).exception(5) is not None
        again = unified_scheduler.initialize_scheduler_environment(config)
        assert again is not shared
        assert shared._runtime is None, "the earlier one was ended"
    finally:
        unified_scheduler.shutdown()
    assert execution_context._shared is None

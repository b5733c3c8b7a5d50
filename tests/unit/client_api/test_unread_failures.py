"""A program that ends reports the failed items whose results it never read, and exits as it would otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor
from ray_multicluster_scheduler.app.client_api.handles import collecting
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.common.notices import MAX_LINES, UnreadFailures, unread_failures
from tests.unit.client_api.actor_plane import ActorPlane, Counter
from tests.unit.client_api.control_plane import until
from tests.unit.lifecycle.driver import task
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]
NOWHERE: Any = {"preferred_cluster": "nowhere"}


# ---- the list


def test_the_report_counts_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    failures = UnreadFailures()
    failures.report()
    assert capsys.readouterr().err == ""
    for number in range(MAX_LINES + 3):
        failures.add(f"t{number}", f"f failed: E{number}\nand more")
    assert failures.read("t0") == "f failed: E0"
    assert failures.read("t0") is None
    failures.report()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"rmcs: {MAX_LINES + 2} items failed")
    assert lines[1] == "rmcs:   t1: f failed: E1"
    assert (len(lines), lines[-1]) == (MAX_LINES + 2, "rmcs:   and 2 more")
    failures.report()
    assert capsys.readouterr().err == "", "once"


def test_it_is_bounded_and_read_by_members(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("ray_multicluster_scheduler.common.notices._MAX_KEPT", 2)
    failures = UnreadFailures()
    for name in ("a", "b", "gang-1"):
        failures.add(name, "failed")
    assert failures.read("gang-1.2") == "failed"
    failures.report()
    assert capsys.readouterr().err.splitlines() == [
        "rmcs: 2 items failed; their results were never read:",
        "rmcs:   b: failed",
        "rmcs:   and 1 more",
    ]
    failures.add("c", "failed")
    failures.clear()
    failures.report()
    assert capsys.readouterr().err == ""


def test_the_first_of_several_reasons_is_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    failures = UnreadFailures()
    failures.add("a", "f failed: E: No cluster can be used:\n  mac: it is stopped\n  linux: too small")
    failures.report()
    assert (
        capsys.readouterr().err.splitlines()[1] == "rmcs:   a: f failed: E: No cluster can be used: mac: it is stopped"
    )


def test_a_failure_that_was_expected_is_read_when_it_arrives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ray_multicluster_scheduler.common.notices._MAX_KEPT", 2)
    failures = UnreadFailures()
    failures.add("arrived", "failed")
    for name in ("arrived", "oldest", "b", "c"):
        failures.expect(name)
    failures.add("b", "failed")
    failures.report()
    assert capsys.readouterr().err == ""
    failures.add("oldest", "failed")
    failures.add("b", "failed again")
    assert ("oldest" in failures, "b" in failures) == (True, True)


# ---- what counts as asked


@pytest.fixture
def plane() -> Iterator[ActorPlane]:
    unread_failures.clear()
    with ActorPlane() as plane:
        yield plane
    unread_failures.clear()


@pytest.fixture
def scheduler(plane: ActorPlane) -> UnifiedScheduler:
    scheduler = UnifiedScheduler(plane.runtime.config)
    scheduler._runtime, scheduler._submission, scheduler._actors = plane.runtime, plane.submission, plane.actors
    return scheduler


def failed_task(scheduler: UnifiedScheduler, *args: Any) -> Any:
    handle = scheduler.submit_task_async(print, args, **NOWHERE)
    assert handle._item.wait(60) is not None
    return handle


def raises(call: Callable[[], object]) -> None:
    with pytest.raises(SchedulerError):
        call()


def test_any_question_counts(scheduler: UnifiedScheduler) -> None:
    for ask in (
        lambda handle: handle.exception(),
        lambda handle: raises(handle.result),
        lambda handle: handle.state,
        lambda handle: handle.explain(),
        lambda handle: scheduler.explain(handle.id),
        lambda handle: raises(lambda: scheduler.get([handle])),
    ):
        handle = failed_task(scheduler)
        assert handle.id in unread_failures
        ask(handle)
        assert handle.id not in unread_failures
    job = scheduler.submit_job_async("true", **NOWHERE)
    assert job._item.wait(60) is not None
    assert job.id in unread_failures
    assert scheduler.get_job_status(job.id) == "FAILED"
    assert job.id not in unread_failures
    received = []
    handle = failed_task(scheduler)
    handle.add_done_callback(received.append)
    until(lambda: received)
    assert handle.id not in unread_failures


def test_get_of_many_asks_for_all(plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
    later = plane.task("later")
    handles = [failed_task(scheduler), failed_task(scheduler), later]
    with pytest.raises(SchedulerError):
        collecting.get(handles)
    plane.fail(later)
    assert later._item.wait(60) is not None
    assert not any(one.id in unread_failures for one in handles)


def test_only_failures_count(plane: ActorPlane, scheduler: UnifiedScheduler) -> None:
    done, cancelled, failed = plane.task("t1"), plane.task("t2"), plane.task("t3")
    plane.finish(done)
    cancelled.cancel()
    plane.fail(failed)
    assert all(one._item.wait(60) is not None for one in (cancelled, failed))
    assert [one.id in unread_failures for one in (done, cancelled, failed)] == [False, False, True]
    dependent = failed_task(scheduler, failed)
    assert dependent.exception() is not None


def test_an_actor_is_asked_for_by_itself_or_by_a_call(scheduler: UnifiedScheduler) -> None:
    def failed_actor() -> Any:
        actor = scheduler.submit_actor_async(Counter, **NOWHERE)
        assert actor._item.wait(60) is not None
        assert actor._item.id in unread_failures
        return actor

    for ask in (
        lambda actor: raises(actor.ready),
        lambda actor: actor.state,
        lambda actor: actor.explain(),
        lambda actor: actor.add.remote().exception(60),
    ):
        actor = failed_actor()
        ask(actor)
        assert actor._item.id not in unread_failures


@pytest.mark.parametrize(("failure", "read"), [(FailureClass.CRASH, True), (FailureClass.USER, False)])
def test_the_error_of_a_call_may_arrive_before_the_end_of_its_actor(
    plane: ActorPlane, failure: FailureClass, read: bool
) -> None:
    actor = plane.actor()
    plane.start(actor)
    call = actor.add.remote()
    plane.sent(1)
    plane.fail_call(call.id, failure)
    assert call.exception(60) is not None
    plane.die(actor)
    assert actor._item.wait(60) is not None
    assert (actor._item.id not in unread_failures) == read


def test_a_call_that_nobody_reads_counts(plane: ActorPlane) -> None:
    actor = plane.actor()
    plane.start(actor)
    unread, read, waited = actor.add.remote(), actor.add.remote(), actor.add.remote()
    cancelled, done = actor.add.remote(), actor.add.remote()
    plane.sent(5)
    for call in (unread, read, waited):
        plane.fail_call(call.id, FailureClass.USER, error_type="ValueError")
    plane.answer(done.id, 1)
    cancelled.cancel()
    assert all(one._item.wait(60) is not None for one in (unread, read, waited, done))
    assert read.exception() is not None
    raises(lambda: collecting.get([waited]))
    assert [one.id in unread_failures for one in (unread, read, waited, cancelled, done)] == [True] + [False] * 4


@pytest.mark.parametrize(("max_restarts", "killed", "counts"), [(0, False, False), (1, False, True), (1, True, False)])
def test_a_call_whose_actor_died_counts_if_its_actor_does_not(
    plane: ActorPlane, max_restarts: int, killed: bool, counts: bool
) -> None:
    actor = plane.actor(max_restarts=max_restarts)
    plane.start(actor)
    call = actor.add.remote()
    plane.sent(1)
    if killed:
        actor.kill()
    plane.fail_call(call.id, FailureClass.CRASH)
    assert call._item.wait(60) is not None
    assert (call.id in unread_failures) == counts


def test_a_future_is_asked_for_by_its_user_only(scheduler: UnifiedScheduler) -> None:
    with FleetExecutor(scheduler, **NOWHERE) as pool:
        futures = [pool.submit(print) for _ in range(3)]
    ids = [one.handle.id for one in futures]
    assert all(one in unread_failures for one in ids)
    assert futures[0].exception() is not None
    with pytest.raises(SchedulerError):
        futures[1].result()
    assert [one in unread_failures for one in ids] == [False, False, True]


def test_those_of_a_service_are_reported_by_the_program_that_submitted_them(tmp_path: Path) -> None:
    unread_failures.clear()
    with HttpService(tmp_path / "state") as service, UnifiedScheduler(address=service.address) as scheduler:
        mine = failed_task(scheduler)
        other = service.plane.taken(task("other", **NOWHERE), blobs={})
        assert other.wait(60) is not None
        assert [one in unread_failures for one in (mine.id, "other")] == [True, False]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(mine.exception).result() is not None
        assert mine.id not in unread_failures


# ---- at the end of a program


PROGRAM = """
    import sys
    from ray_multicluster_scheduler import UnifiedScheduler

    scheduler = UnifiedScheduler(clusters=[{"name": "mac", "dashboard": "http://127.0.0.1:9"}])
    handles = [scheduler.submit_task_async(print, (n,), preferred_cluster="nowhere") for n in range(5)]
    assert handles[0].exception() is not None
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(7)", 7), ("raise ValueError('mine')", 1)])
def test_the_program_says_how_many_and_which(end: str, code: int) -> None:
    text = textwrap.dedent(PROGRAM) + f"print(*[one.id for one in handles])\n{end}\n"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    first, *ids = done.stdout.split()
    assert done.returncode == code, done.stderr
    reported = [line for line in done.stderr.splitlines() if line.startswith("rmcs: ")]
    assert "4 items failed" in reported[0]
    assert [line.split(":")[1].strip() for line in reported[1:]] == ids
    assert all("print failed: ConfigurationError" in line for line in reported[1:])
    assert first not in done.stderr

"""JobRunner: a job is submitted once, watched to its end, and stopped when asked, whatever the network does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.model import FailureClass, JobDescription, TaskDescription
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import AdoptAttempt, CancelAttempt, Dispatch
from ray_multicluster_scheduler.scheduler.scheduler_core import job_runner
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import PreparedAttempt
from ray_multicluster_scheduler.scheduler.scheduler_core.dispatcher import BackgroundTasks
from ray_multicluster_scheduler.scheduler.scheduler_core.job_runner import JobRunner
from tests.support.eventually import eventually
from tests.support.links import FakeClock
from tests.unit.lifecycle.driver import job

DOWN = DashboardProblem("the dashboard is down", code="DASHBOARD_DOWN", cluster="a")
UNSURE = DashboardProblem("no answer came", code="DASHBOARD_TIMEOUT", ambiguous=True, cluster="a")
RAY_ID = "j1-cp1-1"


class Bench:
    """A runner; this object is its client pool, its dashboard and its preparation."""

    def __init__(self, item: TaskDescription | None = None) -> None:
        self.posted: list[events.Event] = []
        self.item = item or job("j1")
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submits: list[dict[str, Any]] = []
        self.problems: list[Exception] = []
        self.silent: Exception | None = None
        self.stops = 0
        self.ready = asyncio.Event()
        self.ready.set()
        self.prepared: dict[str, PreparedAttempt] = {}
        self.clock = FakeClock(50.0)
        self.background = BackgroundTasks()
        fake = cast("Any", self)
        self.runner = JobRunner(lambda _: self.item, self.posted.append, fake, fake, self.clock, "cp1", self.background)

    def client(self, cluster: str) -> Bench:
        return self

    async def job(self, item: TaskDescription, cluster: str, attempt: int, fence: int) -> PreparedAttempt:
        await self.ready.wait()
        return PreparedAttempt(cluster, attempt, {"env_vars": {"A": "1"}}, "python moved.py")

    async def submit_job(self, submission_id: str, entrypoint: str, **options: Any) -> None:
        self.submits.append({"id": submission_id, "entrypoint": entrypoint, **options})
        if self.problems:
            raise self.problems.pop(0)
        self.jobs.setdefault(submission_id, {"status": "PENDING"})

    async def job_info(self, submission_id: str) -> dict[str, Any] | None:
        if self.silent is not None:
            raise self.silent
        return self.jobs.get(submission_id)

    async def stop_job(self, submission_id: str) -> None:
        self.stops += 1
        if self.silent is not None:
            raise self.silent
        self.jobs[submission_id] = {"status": "STOPPED", "message": "stopped by us"}

    async def submit(self) -> None:
        self.runner.dispatch("a", [Dispatch("j1", 1, 9, "a")])
        await eventually(lambda: not self.runner._submitting)

    def cancel(self) -> None:
        self.runner.cancel(CancelAttempt("j1", 1, "a", False))

    def becomes(self, status: str, **info: Any) -> None:
        self.jobs[RAY_ID] = {"status": status, **info}

    async def until_over(self) -> events.AttemptFinished:
        await eventually(lambda: self.posted and isinstance(self.posted[-1], events.AttemptFinished))
        return cast("events.AttemptFinished", self.posted[-1])


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(job_runner, "POLL_S", 0.005)
    monkeypatch.setattr(job_runner, "_RETRY_S", 0.005)
    made = Bench()
    yield made
    await made.background.close()


async def test_a_job_from_submit_to_success(bench: Bench) -> None:
    await bench.submit()
    assert bench.posted == [events.DispatchAccepted("j1", 1)]
    bench.becomes("RUNNING")
    await eventually(lambda: len(bench.posted) == 2)
    bench.becomes("SUCCEEDED")
    assert await bench.until_over() == events.AttemptFinished("j1", 1, "succeeded")
    assert bench.posted[1] == events.Started("j1", 1, 50.0)
    assert len(bench.posted) == 3


async def test_a_job_is_cancelled_before_its_submission_begins(bench: Bench) -> None:
    bench.ready.clear()
    bench.runner.dispatch("a", [Dispatch("j1", 1, 9, "a"), Dispatch("j1", 2, 10, "a")])
    bench.cancel()
    bench.ready.set()
    await eventually(lambda: len(bench.posted) == 2)
    assert bench.posted == [events.AttemptFinished("j1", 1, "cancelled"), events.DispatchAccepted("j1", 2)]


async def test_submission_request(bench: Bench) -> None:
    own = {"CPU": 0.5, "GPU": 1.0, "memory": 1024.0, "tpu": 2.0}
    bench.item = job("j1", job=JobDescription("python x.py", {"team": "x"}, own))
    await bench.submit()
    (sent,) = bench.submits
    assert (sent["id"], sent["entrypoint"], sent["runtime_env"]) == (
        RAY_ID,
        "python moved.py",
        {"env_vars": {"A": "1"}},
    )
    assert sent["metadata"] == {
        "team": "x",
        "rmcs_control_plane": "cp1",
        "rmcs_task": "j1",
        "rmcs_attempt": "1",
    }
    assert (sent["entrypoint_num_cpus"], sent["entrypoint_num_gpus"]) == (0.5, 1.0)
    assert (sent["entrypoint_memory"], sent["entrypoint_resources"]) == (1024, {"tpu": 2.0})
    assert bench.prepared["j1"].entrypoint == "python moved.py"


async def test_a_job_too_short_to_be_seen_running_has_still_started(bench: Bench) -> None:
    await bench.submit()
    bench.becomes("SUCCEEDED", start_time=1)
    await bench.until_over()
    assert [type(event) for event in bench.posted] == [
        events.DispatchAccepted,
        events.Started,
        events.AttemptFinished,
    ]


async def test_such_a_job_ran_since_it_was_last_seen_to_wait(bench: Bench) -> None:
    """Not for no time at all: what is simulated, or forecast, by how long it ran would be wrong."""
    await bench.submit()
    lane = bench.runner._lanes["a"]
    await eventually(lambda: [one for one in lane.jobs.values() if one.pending_at == 50.0])
    bench.clock.time = 50.4
    bench.becomes("SUCCEEDED", start_time=1)
    await bench.until_over()
    (started,) = [event for event in bench.posted if isinstance(event, events.Started)]
    assert started.at == 50.0


@pytest.mark.parametrize(("took_ms", "began"), [(1000, 649.0), (900_000, 50.0), (-5000, 650.0)])
async def test_the_start_is_computed_from_the_duration_that_the_cluster_reports(
    bench: Bench, took_ms: int, began: float
) -> None:
    """The cluster may have been silent for minutes meanwhile. Its clock is not ours."""
    await bench.submit()
    lane = bench.runner._lanes["a"]
    await eventually(lambda: [one for one in lane.jobs.values() if one.pending_at == 50.0])
    bench.clock.time = 650.0
    bench.becomes("SUCCEEDED", start_time=7_000_000, end_time=7_000_000 + took_ms)
    await bench.until_over()
    (started,) = [event for event in bench.posted if isinstance(event, events.Started)]
    assert started.at == began


@pytest.mark.parametrize(
    ("info", "failure", "code"),
    [
        ({"driver_exit_code": 3, "message": "exit 3"}, FailureClass.USER, "JOB_FAILED"),
        ({"driver_exit_code": 1}, FailureClass.USER, "JOB_FAILED"),
        ({"driver_exit_code": None}, FailureClass.CRASH, "JOB_SUPERVISOR_DIED"),
        ({"error_type": "RUNTIME_ENV_SETUP_FAILURE"}, FailureClass.PERMANENT, "RUNTIME_ENV_FAILED"),
    ],
)
async def test_failure_class_of_jobs(bench: Bench, info: dict[str, Any], failure: FailureClass, code: str) -> None:
    await bench.submit()
    bench.becomes("FAILED", **info)
    ended = await bench.until_over()
    assert (ended.status, ended.failure, ended.code) == ("failed", failure, code)
    assert ended.sentence


@pytest.mark.parametrize(
    ("problem", "failure"),
    [(DOWN, FailureClass.CLUSTER), (TaskSubmissionError("Ray refused it"), FailureClass.PERMANENT)],
)
async def test_a_submit_that_failed_for_sure_is_refused(
    bench: Bench, problem: Exception, failure: FailureClass
) -> None:
    bench.problems = [problem]
    await bench.submit()
    (refused,) = bench.posted
    assert isinstance(refused, events.DispatchRefused)
    assert refused.failure is failure
    assert refused.sentence == str(problem)


async def test_a_submit_whose_fate_is_unknown_is_repeated_under_the_same_id(bench: Bench) -> None:
    bench.problems = [UNSURE, UNSURE]
    await bench.submit()
    assert [sent["id"] for sent in bench.submits] == [RAY_ID] * 3
    assert bench.posted == [events.DispatchAccepted("j1", 1)]


async def test_after_an_uncertain_submit_a_cluster_that_is_down_is_no_answer(bench: Bench) -> None:
    """The first submit may have been carried out; a second attempt elsewhere could run beside it."""
    bench.problems = [UNSURE, DOWN, DOWN]
    await bench.submit()
    assert bench.posted == [events.DispatchAccepted("j1", 1)]
    assert len(bench.submits) == 4


async def test_one_failed_poll_is_not_a_failed_job(bench: Bench) -> None:
    await bench.submit()
    bench.becomes("RUNNING")
    await eventually(lambda: len(bench.posted) == 2)
    bench.silent = DOWN
    await asyncio.sleep(0.05)
    assert len(bench.posted) == 2
    bench.silent = None
    bench.becomes("SUCCEEDED")
    await bench.until_over()


async def test_a_cluster_that_knows_nothing_of_the_job_was_restarted(bench: Bench) -> None:
    await bench.submit()
    bench.jobs.clear()
    ended = await bench.until_over()
    assert (ended.failure, ended.code) == (FailureClass.CLUSTER, "CLUSTER_RESTARTED")


async def test_cancel_stops_it_and_its_end_is_seen(bench: Bench) -> None:
    await bench.submit()
    bench.becomes("RUNNING")
    bench.cancel()
    ended = await bench.until_over()
    assert (ended.status, ended.sentence) == ("cancelled", "stopped by us")


async def test_cancel_is_repeated_until_it_is_answered(bench: Bench) -> None:
    await bench.submit()
    bench.becomes("RUNNING")
    bench.silent = DOWN
    bench.cancel()
    await eventually(lambda: bench.stops > 2)
    bench.silent = None
    assert (await bench.until_over()).status == "cancelled"


async def test_cancel_before_it_was_sent_never_sends_it(bench: Bench) -> None:
    bench.ready.clear()
    submitting = asyncio.create_task(bench.submit())
    await asyncio.sleep(0)
    bench.cancel()
    bench.ready.set()
    await submitting
    assert bench.posted == [events.AttemptFinished("j1", 1, "cancelled")]
    assert bench.submits == []


async def test_cancel_while_it_is_being_sent_stops_it_afterwards(bench: Bench) -> None:
    bench.ready.clear()
    submitting = asyncio.create_task(bench.submit())
    bench.ready.set()
    await eventually(lambda: bench.submits)
    bench.cancel()
    await submitting
    ended = await bench.until_over()
    assert (ended.status, bench.stops) == ("cancelled", 1)


async def test_cancel_of_an_unknown_job_is_ignored(bench: Bench) -> None:
    bench.cancel()
    assert bench.posted == []


async def test_close_stops_watching_and_leaves_jobs_alone(bench: Bench) -> None:
    await bench.submit()
    bench.becomes("RUNNING")
    await eventually(lambda: len(bench.posted) == 2)
    await bench.background.close()
    assert bench.jobs[RAY_ID]["status"] == "RUNNING"
    assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []


async def test_a_cancel_in_the_turn_that_placed_it_is_not_lost(bench: Bench) -> None:
    bench.runner.dispatch("a", [Dispatch("j1", 1, 9, "a")])
    bench.cancel()
    await bench.until_over()
    assert bench.posted == [events.AttemptFinished("j1", 1, "cancelled")]
    assert bench.submits == []


async def test_a_dashboard_that_answers_with_errors_and_lacks_the_job_has_refused_it(bench: Bench) -> None:
    bench.problems = [DashboardProblem("HTTP 500", code="BAD_ANSWER", ambiguous=True, cluster="a") for _ in range(9)]
    await bench.submit()
    assert bench.posted == [events.DispatchRefused("j1", 1, FailureClass.CLUSTER, "BAD_ANSWER", "HTTP 500")]
    assert len(bench.submits) == 3


async def test_after_a_time_out_an_error_is_no_refusal(bench: Bench) -> None:
    """The first request may still be carried out."""
    answers = [DashboardProblem("HTTP 500", code="BAD_ANSWER", ambiguous=True, cluster="a") for _ in range(9)]
    bench.problems = [UNSURE, *answers]
    await bench.submit()
    assert bench.posted == [events.DispatchAccepted("j1", 1)]


async def test_a_cancelled_job_with_uncertain_submit_is_queried_and_not_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "_CANCELLED_UNKNOWN_LIMIT", 3)
    bench.problems = [UNSURE] * 100
    work = asyncio.ensure_future(bench.submit())
    await eventually(lambda: bench.submits)
    bench.cancel()
    await work
    assert bench.posted == [events.AttemptFinished("j1", 1, "cancelled")]
    sent = len(bench.submits)
    await asyncio.sleep(0.05)
    assert len(bench.submits) == sent


async def test_a_cancelled_job_with_uncertain_submit_that_exists_is_stopped(bench: Bench) -> None:
    bench.problems = [UNSURE] * 100
    work = asyncio.ensure_future(bench.submit())
    await eventually(lambda: bench.submits)
    bench.becomes("RUNNING")
    bench.cancel()
    await work
    assert (await bench.until_over()).status == "cancelled"
    assert bench.stops == 1


async def test_a_job_of_the_process_before_is_watched_and_never_sent_again(bench: Bench) -> None:
    bench.becomes("RUNNING")
    bench.runner.adopt(AdoptAttempt("j1", 1, 9, "a"))
    await asyncio.sleep(0.02)
    assert bench.posted == []  # that it runs is known
    bench.becomes("SUCCEEDED")
    assert await bench.until_over() == events.AttemptFinished("j1", 1, "succeeded")
    assert bench.submits == []


async def test_a_job_of_the_previous_process_that_the_cluster_does_not_know_is_lost(bench: Bench) -> None:
    bench.runner.adopt(AdoptAttempt("j1", 1, 9, "a"))
    over = await bench.until_over()
    assert (over.failure, over.code) == (FailureClass.CLUSTER, "CLUSTER_RESTARTED")
    assert bench.submits == []


async def test_a_job_of_the_process_before_can_be_stopped(bench: Bench) -> None:
    bench.becomes("RUNNING")
    bench.runner.adopt(AdoptAttempt("j1", 1, 9, "a"))
    bench.cancel()
    assert (await bench.until_over()).status == "cancelled"
    assert bench.stops == 1

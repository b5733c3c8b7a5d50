"""`wait_for_all_jobs`: it raises when a job failed, and prints only what has changed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.job_verbs import JobVerbs
from ray_multicluster_scheduler.common.exception import JobsFailedError, SchedulerError, TaskTimeoutError


class Jobs(JobVerbs):
    """Each wait goes on to the next row of statuses; the last row stays."""

    def __init__(self, *rows: Mapping[str, str]) -> None:
        self.rows, self.cancelled = list(rows), list[str]()

    def cancel(self, item: Any, *, force: bool = False, recursive: bool = True) -> None:
        self.cancelled.append(item)

    def _check_cluster(self, name: str | None) -> None:
        assert name is None

    def job_info(self, job_id: str) -> dict[str, Any]:
        return {"status": self.rows[0][job_id]}

    def job_logs(self, job_id: str) -> str:
        raise NotImplementedError

    def follow_job_logs(self, job_id: str) -> Iterator[str]:
        raise NotImplementedError

    def wait_for_a_job(self, job_ids: Sequence[str], timeout: float) -> None:
        if len(self.rows) > 1:
            del self.rows[0]


RUNNING, ENDED = {"a": "RUNNING", "b": "RUNNING", "c": "QUEUED"}, {"a": "SUCCEEDED", "b": "FAILED", "c": "STOPPED"}


def test_a_failed_job_raises_after_all_have_ended() -> None:
    jobs = Jobs(RUNNING, {**RUNNING, "b": "FAILED"}, ENDED)
    with pytest.raises(JobsFailedError) as caught:
        jobs.wait_for_all_jobs(list(ENDED))
    assert (caught.value.statuses, caught.value.task_id, caught.value.code) == (ENDED, "b", "JOBS_FAILED")
    assert (jobs.rows, jobs.cancelled) == ([ENDED], []), "one failure does not stop the others"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.statuses, str(again)) == (JobsFailedError, ENDED, str(caught.value))
    assert isinstance(again, SchedulerError)


def test_statuses_are_returned_on_request_and_when_none_failed() -> None:
    assert Jobs(ENDED).wait_for_all_jobs(list(ENDED), raise_on_failure=False) == ENDED
    stopped = {"a": "SUCCEEDED", "b": "STOPPED", "c": "EXPIRED"}
    assert Jobs(stopped).wait_for_all_jobs(list(stopped)) == stopped
    assert Jobs().wait_for_all_jobs([]) == {}


def test_a_failure_stops_the_others_on_request_and_raises() -> None:
    jobs = Jobs({"a": "RUNNING", "b": "FAILED"}, {"a": "STOPPED", "b": "FAILED"})
    with pytest.raises(JobsFailedError) as caught:
        jobs.wait_for_all_jobs(["a", "b"], stop_on_failure=True)
    assert (jobs.cancelled, caught.value.statuses) == (["a"], {"a": "STOPPED", "b": "FAILED"})


def test_it_prints_only_what_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    queued = {**RUNNING, "a": "QUEUED"}
    jobs = Jobs(
        queued, queued, RUNNING, RUNNING, RUNNING, {**RUNNING, "a": "SUCCEEDED"}, dict.fromkeys("abc", "STOPPED")
    )
    jobs.wait_for_all_jobs(list(RUNNING), check_interval=0)
    assert capsys.readouterr().err.splitlines() == [
        "rmcs: waiting for a (QUEUED), b (RUNNING), c (QUEUED)",
        "rmcs: waiting for a (RUNNING), b (RUNNING), c (QUEUED)",
        "rmcs: waiting for b (RUNNING), c (QUEUED)",
    ]


def test_a_timeout_comes_before_a_failure() -> None:
    jobs = Jobs({**ENDED, "c": "RUNNING"})
    with pytest.raises(TaskTimeoutError):
        jobs.wait_for_all_jobs(list(ENDED), timeout=0)


def test_only_the_first_of_many_jobs_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"j{number:02}": "RUNNING" for number in range(20)}
    Jobs(many, dict.fromkeys(many, "SUCCEEDED")).wait_for_all_jobs(list(many), check_interval=0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("j04 (RUNNING) and 15 more")

"""What is reported about items and jobs, and what is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.scheduler_core.attempt_preparation import PreparedAttempt
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import job


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(kept_finished=1) as plane:
        yield plane


def test_secrets_are_not_shown(plane: ControlPlane) -> None:
    handle = plane.job("j1")
    given = {
        "pip": ["numpy"],
        "env_vars": {
            "TOKEN": "s3cret",
            "RMCS_CLUSTERS": "auth_token: s3cret",
            "RMCS_CLUSTER": "mac",
            "RMCS_ATTEMPT": "1",
        },
    }
    plane.runtime.preparation.prepared["j1"] = PreparedAttempt("mac", 1, given)
    history = handle.explain()
    assert "s3cret" not in str(history)
    assert history["runtime_env"] == {
        "pip": ["numpy"],
        "env_vars": {
            "TOKEN": explanation.MASKED,
            "RMCS_CLUSTERS": explanation.MASKED,
            "RMCS_CLUSTER": "mac",
            "RMCS_ATTEMPT": "1",
        },
    }
    assert given["env_vars"]["TOKEN"] == "s3cret", "what is sent stays as it is"


def test_an_environment_without_variables_is_shown_as_it_is(plane: ControlPlane) -> None:
    handle = plane.job("j1")
    assert handle.explain()["runtime_env"] is None
    plane.runtime.preparation.prepared["j1"] = PreparedAttempt("mac", 1, {"pip": ["numpy"]})
    assert handle.explain()["runtime_env"] == {"pip": ["numpy"]}


def test_a_job_from_first_to_last(plane: ControlPlane) -> None:
    runtime = plane.runtime
    first = plane.job("j0", cpus=8)
    waiting = plane.submit(job("j1", cpus=8))
    info = runtime.job_info("j1")
    assert (info["status"], info["cluster"], info["ray_submission_id"]) == ("QUEUED", None, None)
    running = runtime.job_info("j0")
    assert (running["status"], running["cluster"], running["ray_submission_id"]) == ("RUNNING", "mac", "j0-cp1-1")
    waiting.cancel()
    assert waiting.exception(5) is not None
    assert runtime.job_info("j1")["status"] == "STOPPED"
    assert [row["job_id"] for row in runtime.job_rows()] == ["j0", "j1"]
    plane.finish(first)
    assert runtime.job_info("j0")["status"] == "SUCCEEDED"
    assert runtime.job_info("j1")["status"] == "EXPIRED"


def test_ids_that_mean_nothing_here(plane: ControlPlane) -> None:
    with pytest.raises(UnknownItemError, match="There is no item 'j9' here"):
        plane.runtime.job_info("j9")
    with pytest.raises(UnknownItemError, match="'j9'"):
        plane.runtime.explain("j9")
    plane.task("t1")
    with pytest.raises(UnknownItemError, match="is a task, not a job"):
        plane.runtime.job_info("t1")


def test_crashes_that_do_not_open_the_breaker_are_mentioned() -> None:
    with ControlPlane(breaker_failures=2) as plane:
        for number in range(3):
            crashed = plane.task(f"t{number}", crash_retries=0)
            plane.post(events.AttemptFinished(crashed.id, 1, "failed", FailureClass.CRASH, sentence="its worker died"))
            assert crashed.exception(5) is not None
        following = plane.task("next")
        (note,) = following.explain()["notes"]
        assert note.startswith("mac: the workers of 3 of the last 3 attempts there crashed; that does not count for br")
        assert f"  note: {note}\n" in str(following.explain())
        assert crashed.explain()["notes"] == [note]
        plane.finish(following)
        (note,) = following.explain()["notes"]
        assert note.startswith("mac: the workers of 3 of the last 4 attempts there crashed")
        assert crashed.explain()["notes"] == [note]
        for number in range(2):
            plane.finish(plane.task(f"s{number}"))
        assert plane.task("later").explain()["notes"] == []


def test_the_words_for_jobs_that_are_over() -> None:
    assert {"SUCCEEDED", "FAILED", "STOPPED", "EXPIRED"} == ENDED
    assert set(explanation.JOB_STATUS) == set(TaskState), "every state has a word"


def test_a_job_on_a_cluster_with_a_silent_head_waits_for_it(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = plane.job("j1", retry_lost=True)
    plane.post(events.HeadSilent("mac", 6.0))
    until(lambda: handle.explain()["code"] == "CLUSTER_SUSPECT")
    sentence = handle.explain()["sentence"]
    assert sentence.startswith("mac has it, but mac has a problem: ")
    assert sentence.endswith("it waits until mac answers or is declared dead (`rmcs clusters declare-dead mac`)")
    until(lambda: "rmcs: 1 item on mac: mac has a head that has not answered" in capsys.readouterr().err)

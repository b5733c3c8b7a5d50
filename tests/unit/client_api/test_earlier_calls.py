"""Imports and calls of programs for earlier versions: docs/how-to/coming-from-earlier-versions.md."""

from __future__ import annotations

import importlib
import inspect
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler import ConfigurationError, UnifiedScheduler
from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.in_cluster.scheduler import NativeScheduler
from tests.unit.client_api.control_plane import CLOSED_PORT
from tests.unit.client_api.verb_parameters import check_same_parameters

EXPORTS = {
    "app.client_api": (
        "UnifiedScheduler get_job_status get_unified_scheduler graceful_shutdown_on_keyboard_interrupt "
        "initialize_scheduler_environment stop_job submit_actor submit_job submit_task wait_for_all_jobs"
    ),
    "app.client_api.submit_actor": "submit_actor",
    "app.client_api.submit_job": (
        "get_job_info get_job_status graceful_shutdown_on_keyboard_interrupt stop_job submit_job wait_for_all_jobs"
    ),
    "app.client_api.submit_task": "submit_task",
    "app.client_api.unified_scheduler": (
        "UnifiedScheduler get_unified_scheduler initialize_scheduler_environment submit_actor submit_job submit_task"
    ),
}
EARLIER_NAMES = {
    "submit_task": "func",
    "submit_task_async": "func",
    "submit_actor": "actor_class",
    "submit_actor_async": "actor_class",
}
JOB_VERBS = ("get_job_status", "get_job_info", "stop_job")


@pytest.fixture
def scheduler() -> Iterator[UnifiedScheduler]:
    """The shared one. Its cluster never answers: what is submitted waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        dashboard = f"http://127.0.0.1:{server.getsockname()[1]}"
        scheduler = UnifiedScheduler(clusters=[{"name": "mac", "dashboard": dashboard}])
        before = execution_context.exchange_shared(scheduler)
        yield scheduler
        scheduler.shutdown()
        execution_context.exchange_shared(before)


@pytest.mark.parametrize("module", EXPORTS)
def test_modules_export_what_they_exported(module: str) -> None:
    loaded = importlib.import_module(f"ray_multicluster_scheduler.{module}")
    for name in EXPORTS[module].split():
        assert getattr(loaded, name) is getattr(api, name)
        assert name in loaded.__all__


def test_the_package_has_the_functions_whatever_was_imported_before() -> None:
    program = (
        "import ray_multicluster_scheduler.app.client_api.submit_task\n"
        "from ray_multicluster_scheduler.app.client_api import submit_task, submit_job, submit_actor\n"
        "assert all(map(callable, [submit_task, submit_job, submit_actor]))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("verb", EARLIER_NAMES)
@pytest.mark.usefixtures("scheduler")
def test_what_to_run_is_also_given_by_its_earlier_name(verb: str, scheduler: UnifiedScheduler) -> None:
    for call in (getattr(api, verb), getattr(scheduler, verb), partial(getattr(NativeScheduler, verb), None)):
        with pytest.raises(TypeError, match="multiple values"):  # it arrives as the first argument
            call(len, **{EARLIER_NAMES[verb]: len})


@pytest.mark.usefixtures("scheduler")
def test_a_function_and_a_class_by_their_earlier_names(scheduler: UnifiedScheduler) -> None:
    assert api.submit_task_async(func=len, args=("abc",)).explain()["name"] == "len"  # type: ignore[call-overload]
    assert scheduler.submit_task_async(func=len).explain()["name"] == "len"  # type: ignore[call-overload]
    assert api.explain(api.submit_actor_async(actor_class=Exception))["name"] == "Exception"  # type: ignore[call-arg]


@pytest.mark.usefixtures("scheduler")
class TestJobs:
    def test_job_id_is_the_submission_id(self) -> None:
        assert api.submit_job("true", job_id="mine") == "mine"  # type: ignore[call-arg]
        assert api.submit_job("true", submission_id="mine") == "mine", "the same job"
        assert api.submit_job("true", job_id=None) != "mine"  # type: ignore[call-arg]

    def test_two_names_for_one_job_must_agree(self) -> None:
        assert api.submit_job("true", job_id="both", submission_id="both") == "both"  # type: ignore[call-arg]
        assert api.submit_job("true", job_id=None, submission_id="other") == "other"  # type: ignore[call-arg]
        with pytest.raises(ConfigurationError, match="job_id"):
            api.submit_job("true", job_id="one", submission_id="two")  # type: ignore[call-arg]

    def test_a_cluster_may_be_named_with_the_id(self) -> None:
        job_id = api.submit_job("sleep 60", job_id="placed")  # type: ignore[call-arg]
        assert api.get_job_status(job_id, "mac") == api.get_job_status(submission_id=job_id, cluster_name="mac")  # type: ignore[call-arg]
        assert api.get_job_info(job_id, "mac")["job_id"] == job_id
        assert api.stop_job(job_id, "mac")
        assert api.wait_for_all_jobs(submission_ids=[job_id]) == {job_id: "STOPPED"}  # type: ignore[call-arg]

    @pytest.mark.parametrize("verb", JOB_VERBS)
    def test_an_unknown_cluster_is_an_error(self, verb: str) -> None:
        job_id = api.submit_job("true")
        with pytest.raises(ConfigurationError, match="mars"):
            getattr(api, verb)(job_id, "mars")


def test_cleanup_waits_for_work_and_ends_the_scheduler() -> None:
    scheduler = UnifiedScheduler(clusters=[{"name": "mac", "dashboard": CLOSED_PORT}])
    handle = scheduler.submit_task_async(print)
    scheduler.cleanup()
    assert handle.done()
    assert scheduler._runtime is None
    scheduler.cleanup()


def test_the_same_calls_are_accepted_inside_a_cluster() -> None:
    check_same_parameters([*JOB_VERBS, "cleanup"])
    assert inspect.signature(NativeScheduler.stop_job) == inspect.signature(UnifiedScheduler.stop_job)

"""The job verbs of an AsyncScheduler: those of the module, with a control plane of its own and with a service."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    JobsFailedError,
    TaskTimeoutError,
    UnknownItemError,
)
from tests.unit.client_api.test_job_logs import Dashboard
from tests.unit.service.async_world import World, async_world

pytestmark = pytest.mark.usefixtures("leak_check")

NOT_OF_A_SCHEDULER = {
    "current",
    "get_gpu_ids",
    "get_runtime_context",
    "get_unified_scheduler",
    "graceful_shutdown_on_keyboard_interrupt",
    "as_completed",
    "init",
    "initialize_scheduler_environment",
    "is_initialized",
    "member",
    "method",
    "register_policy",
    "remote",
}
"""They make a scheduler, describe work, or tell of the program: nothing of theirs waits."""


@pytest.fixture(params=["its own", "a service"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with async_world(tmp_path if request.param == "a service" else None) as made:
        yield made


def test_every_verb_of_the_module_is_there_and_takes_the_same() -> None:
    verbs = {name for name in api.__all__ if inspect.isfunction(getattr(api, name))} - NOT_OF_A_SCHEDULER
    assert len(verbs) > 40
    for verb in sorted(verbs):
        ours = list(inspect.signature(getattr(api.AsyncScheduler, verb)).parameters.values())[1:]
        theirs = list(inspect.signature(getattr(api, verb)).parameters.values())
        if verb in ("events", "shutdown"):  # what can be chosen is reported at the other one; there is one to be ended
            continue
        theirs = [one for one in theirs if one.name != "fetch_local"]  # of Ray's wait, for programs that were its own
        assert [(one.name, one.default) for one in ours] == [(one.name, one.default) for one in theirs], verb


async def test_a_job_is_looked_at_stopped_and_waited_for(world: World) -> None:
    scheduler = world.scheduler
    done, stopped = [await scheduler.submit_job("ls", submission_id=name) for name in ("done", "stopped")]
    await asyncio.to_thread(world.end_job, done)
    assert await scheduler.wait_for_all_jobs([done]) == {done: "SUCCEEDED"}
    assert await scheduler.get_job_status(done) == "SUCCEEDED"
    assert (await scheduler.get_job_info(done))["entrypoint"] == "ls"
    assert await scheduler.stop_job(done) is False
    assert await scheduler.stop_job(stopped) is True
    assert await scheduler.wait_for_all_jobs([done, stopped]) == {done: "SUCCEEDED", stopped: "STOPPED"}
    assert [row["job_id"] for row in await scheduler.list_jobs("STOPPED")] == [stopped]
    assert [await scheduler.cluster_resources(), await scheduler.available_resources()] == [
        (await scheduler.fleet_resources())[what] for what in ("total", "free")
    ]
    for ask in (scheduler.get_job_status, scheduler.get_job_info, scheduler.get_job_logs, scheduler.stop_job):
        with pytest.raises(UnknownItemError):
            await ask("nobody")


async def test_many_wait_for_jobs_without_threads_and_get_their_timeouts(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = world.scheduler
    job = await scheduler.submit_job("sleep 9")
    waiting = [asyncio.create_task(scheduler.wait_for_all_jobs([job], 0.05)) for _ in range(20)]
    with pytest.raises(TaskTimeoutError, match=r"1 of 1 jobs .*0\.2 s"):
        await scheduler.wait_for_all_jobs([job], timeout=0.2)
    assert sum("rmcs-async" in one.name for one in threading.enumerate()) <= 8
    assert f"waiting for {job} (RUNNING)" in capsys.readouterr().err
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert await scheduler.get_job_status(job) == "RUNNING", "it is left alone"
    await asyncio.to_thread(world.end_job, job)
    assert await asyncio.gather(*waiting[1:]) == [{job: "SUCCEEDED"}] * 19
    with pytest.raises(ConfigurationError, match="pass a list"):
        await scheduler.wait_for_all_jobs(job)


async def test_one_failure_stops_the_others_if_asked(world: World) -> None:
    bad, other = [await world.scheduler.submit_job("ls") for _ in range(2)]
    waiting = asyncio.create_task(world.scheduler.wait_for_all_jobs([bad, other], stop_on_failure=True))
    await asyncio.to_thread(world.end_job, bad, "failed")
    with pytest.raises(JobsFailedError) as caught:
        await waiting
    assert caught.value.statuses == {bad: "FAILED", other: "STOPPED"}
    assert await world.scheduler.wait_for_all_jobs([bad, other], raise_on_failure=False) == caught.value.statuses


async def test_output_is_read_and_followed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await world.scheduler.submit_job("ls", submission_id="j1")
    dashboard = Dashboard()
    dashboard.pieces[world.runtime.jobs.ray_id(job, 1)] = ["a", "b"]
    monkeypatch.setattr(world.runtime, "clients", dashboard)
    assert (await world.scheduler.get_job_logs(job)).startswith("all of j1-")
    reported: list[str] = []
    async for piece in world.scheduler.get_job_logs(job, follow=True):
        reported.append(piece)
        if "".join(reported) == "ab":
            await asyncio.to_thread(world.end_job, job)
    assert "".join(reported) == "ab"

"""Jobs over HTTP: submitted once in spite of retries, and followed without gaps or repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.dashboard import dashboard_jobs
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import Timeouts
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem

OURS = {"rmcs_control_plane": "cp", "rmcs_task": "t", "rmcs_attempt": "1"}
TIMEOUTS = Timeouts(connect=20.0, small=60.0, submit_first_try=3.0, submit=30.0)


class Dashboard:
    """Answers as Ray 2.60 does, with faults where a test wants them."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.posts = 0
        self.lose_answers = 0
        self.drop_requests = 0
        self.refuse_with: tuple[int, str] | None = None
        self.streams: list[list[str]] = []
        self.log = ""
        self.packages: dict[str, bytes] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=10 * 1024**2)
        app.router.add_post("/api/jobs/", self.submit)
        app.router.add_get("/api/jobs/", self.list)
        app.router.add_get("/api/jobs/{id}", self.info)
        app.router.add_get("/api/jobs/{id}/logs", self.logs)
        app.router.add_get("/api/jobs/{id}/logs/tail", self.tail)
        app.router.add_post("/api/jobs/{id}/stop", self.stop)
        app.router.add_get("/api/packages/gcs/{name}", self.get_package)
        app.router.add_put("/api/packages/gcs/{name}", self.put_package)
        return app

    async def submit(self, request: web.Request) -> web.Response:
        self.posts += 1
        body = await request.json()
        if self.drop_requests:
            self.drop_requests -= 1
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if self.refuse_with:
            status, text = self.refuse_with
            return web.Response(status=status, text=text)
        name = body["submission_id"]
        if name in self.jobs:
            text = f"Traceback …\nValueError: Job with submission_id {name} already exists.\n.\n"
            return web.Response(status=500, text=text)
        self.jobs[name] = {**body, "status": "RUNNING"}
        if self.lose_answers:
            self.lose_answers -= 1
            await asyncio.sleep(6)
        return web.json_response({"job_id": name, "submission_id": name})

    async def list(self, request: web.Request) -> web.Response:
        return web.json_response(list(self.jobs.values()))

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response(self._job(request))

    async def logs(self, request: web.Request) -> web.Response:
        self._job(request)
        return web.json_response({"logs": self.log})

    async def stop(self, request: web.Request) -> web.Response:
        job = self._job(request)
        was_running, job["status"] = job["status"] == "RUNNING", "STOPPED"
        return web.json_response({"stopped": was_running})

    async def tail(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for chunk in self.streams.pop(0) if self.streams else []:
            if chunk == "HANG":
                self._job(request)["status"] = "SUCCEEDED"
                await asyncio.sleep(30)
            elif chunk == "END":
                self._job(request)["status"] = "SUCCEEDED"
            else:
                await socket.send_str(chunk)
        return socket

    async def get_package(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.packages:
            return web.Response(status=404, text=f"Package gcs://{name} does not exist")
        return web.Response()

    async def put_package(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = await request.read()
        return web.Response()

    def _job(self, request: web.Request) -> dict[str, Any]:
        name = request.match_info["id"]
        if name not in self.jobs:
            raise web.HTTPNotFound(text=f"Job {name} does not exist")
        return self.jobs[name]


@pytest.fixture
async def dashboard() -> Dashboard:
    return Dashboard()


@pytest.fixture
async def client(dashboard: Dashboard) -> AsyncIterator[DashboardClient]:
    server = TestServer(dashboard.app())
    await server.start_server(shutdown_timeout=0.1)
    client = DashboardClient("mac", f"http://127.0.0.1:{server.port}/", timeouts=TIMEOUTS)
    yield client
    await client.close()
    await server.close()


async def test_submit_sends_all_given_options(dashboard: Dashboard, client: DashboardClient) -> None:
    answer = await client.submit_job(
        "j1",
        "python x.py",
        runtime_env={"env_vars": {"A": "b"}},
        metadata=OURS,
        entrypoint_num_cpus=0.5,
        entrypoint_num_gpus=1,
        entrypoint_memory=1000,
        entrypoint_resources={"x": 2},
    )
    assert answer == "j1"
    assert dashboard.jobs["j1"] == {
        "submission_id": "j1",
        "entrypoint": "python x.py",
        "runtime_env": {"env_vars": {"A": "b"}},
        "metadata": OURS,
        "entrypoint_num_cpus": 0.5,
        "entrypoint_num_gpus": 1,
        "entrypoint_memory": 1000,
        "entrypoint_resources": {"x": 2},
        "status": "RUNNING",
    }


async def test_missing_options_are_left_to_ray(dashboard: Dashboard, client: DashboardClient) -> None:
    await client.submit_job("j1", "true")
    assert set(dashboard.jobs["j1"]) == {"submission_id", "entrypoint", "runtime_env", "metadata", "status"}


async def test_repeated_submit_finds_the_first(dashboard: Dashboard, client: DashboardClient) -> None:
    await client.submit_job("j1", "first", metadata=OURS)
    assert await client.submit_job("j1", "second", metadata=OURS) == "j1"
    assert dashboard.jobs["j1"]["entrypoint"] == "first"


async def test_an_agent_whose_submission_was_slow_is_found_again(dashboard: Dashboard, client: DashboardClient) -> None:
    agent = {"rmcs_control_plane": "cp1", "rmcs_agent": "mac"}
    await client.submit_job("rmcs-agent-1", "first", metadata=agent)
    assert await client.submit_job("rmcs-agent-1", "second", metadata=agent) == "rmcs-agent-1"
    with pytest.raises(TaskSubmissionError, match="not ours"):
        await client.submit_job("rmcs-agent-1", "third", metadata={**agent, "rmcs_control_plane": "cp2"})
    with pytest.raises(TaskSubmissionError, match="not ours"):
        await client.submit_job("rmcs-agent-1", "third", metadata=OURS)


@pytest.mark.parametrize(
    "theirs", [None, {}, {**OURS, "rmcs_attempt": "2"}, {**OURS, "rmcs_task": "x"}, {**OURS, "rmcs_control_plane": "x"}]
)
async def test_a_job_of_another_control_plane_is_not_adopted(
    theirs: dict[str, str] | None, dashboard: Dashboard, client: DashboardClient
) -> None:
    dashboard.jobs["j1"] = {"submission_id": "j1", "metadata": theirs, "status": "RUNNING"}
    with pytest.raises(TaskSubmissionError, match="already has a job j1, and it is not ours") as caught:
        await client.submit_job("j1", "x", metadata=OURS)
    assert (caught.value.task_id, caught.value.cluster) == ("j1", "mac")


async def test_without_proof_nothing_is_adopted(dashboard: Dashboard, client: DashboardClient) -> None:
    await client.submit_job("j1", "x")
    with pytest.raises(TaskSubmissionError, match="not ours"):
        await client.submit_job("j1", "x")


async def test_lost_answer_is_looked_up_and_not_sent_again(dashboard: Dashboard, client: DashboardClient) -> None:
    dashboard.lose_answers = 1
    assert await client.submit_job("j1", "x", metadata=OURS) == "j1"
    assert dashboard.posts == 1


async def test_lost_request_is_sent_again(dashboard: Dashboard, client: DashboardClient) -> None:
    dashboard.drop_requests = 1
    assert await client.submit_job("j1", "x", metadata=OURS) == "j1"
    assert (dashboard.posts, list(dashboard.jobs)) == (2, ["j1"])


async def test_two_lost_answers_are_ambiguous(dashboard: Dashboard, client: DashboardClient) -> None:
    dashboard.drop_requests = 2
    with pytest.raises(DashboardProblem) as caught:
        await client.submit_job("j1", "x", metadata=OURS)
    assert (caught.value.ambiguous, caught.value.permanent) == (True, False)
    assert caught.value.task_id == "j1"
    assert caught.value.ambiguous


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "Traceback …\nTypeError: metadata values must be strings, got <class 'int'>"),
        (500, "RuntimeError: Request failed with status code 400: Traceback …\nValueError: bad runtime_env\n.\n"),
    ],
)
async def test_a_bad_job_is_the_jobs_fault(
    status: int, text: str, dashboard: Dashboard, client: DashboardClient
) -> None:
    dashboard.refuse_with = (status, text)
    with pytest.raises(TaskSubmissionError, match=r"refuses job j1: (TypeError|ValueError): ") as caught:
        await client.submit_job("j1", "x", metadata=OURS)
    assert dashboard.posts == 1
    assert caught.value.next_step


async def test_a_cluster_that_cannot_take_jobs_is_the_clusters_fault(
    dashboard: Dashboard, client: DashboardClient
) -> None:
    dashboard.refuse_with = (500, "No available agent to submit job, please try again later.")
    with pytest.raises(DashboardProblem, match="No available agent") as caught:
        await client.submit_job("j1", "x", metadata=OURS)
    assert caught.value.code == "BAD_ANSWER"
    assert not caught.value.permanent


@pytest.mark.parametrize("bad", ["", "a/b", "../x", "a b", "a?b", "x" * 201])
async def test_ids_that_would_reach_another_route_are_refused(bad: str, client: DashboardClient) -> None:
    for call in (client.submit_job(bad, "x"), client.job_info(bad), client.stop_job(bad)):
        with pytest.raises(TaskSubmissionError, match="cannot be the id of a Ray job"):
            await call


async def test_life_of_a_job(dashboard: Dashboard, client: DashboardClient) -> None:
    assert await client.job_info("j1") is None
    assert await client.stop_job("j1") is False
    await client.submit_job("j1", "x", metadata=OURS)
    info = await client.job_info("j1")
    assert info is not None
    assert info["status"] == "RUNNING"
    assert [job["submission_id"] for job in await client.list_jobs()] == ["j1"]
    assert await client.stop_job("j1") is True
    assert await client.stop_job("j1") is False
    with pytest.raises(TaskSubmissionError, match="has no job j2"):
        await client.job_logs("j2")


async def collect(client: DashboardClient) -> list[str]:
    return [piece async for piece in client.tail_job_logs("j1") if piece]


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_jobs, "POLL_S", 0.05)


@pytest.mark.usefixtures("quick_polls")
@pytest.mark.parametrize(
    "streams",
    [
        [["one\n", "two\n", "three\n", "END"]],
        [["one\n", "END"]],
        [["END"]],
        [["one\n", "HANG"]],
        [["one\n"], ["one\ntw", "o\n", "END"]],
        [["one\n"], [], ["one\n", "two\n"], ["END"]],
        [["one\ntwo\n"], ["one\n"], ["one\ntwo\nthree\n", "END"]],
    ],
    ids=["whole", "late end", "nothing streamed", "never closes", "breaks", "breaks often", "comes back shorter"],
)
async def test_followed_log_has_no_gap_and_no_double(
    streams: list[list[str]], dashboard: Dashboard, client: DashboardClient
) -> None:
    dashboard.jobs["j1"] = {"submission_id": "j1", "status": "RUNNING"}
    dashboard.streams = streams
    dashboard.log = "one\ntwo\nthree\n"
    pieces = await asyncio.wait_for(collect(client), 25)
    assert "".join(pieces) == "one\ntwo\nthree\n"


@pytest.mark.usefixtures("quick_polls")
async def test_following_can_be_given_up_early(dashboard: Dashboard, client: DashboardClient) -> None:
    dashboard.jobs["j1"] = {"submission_id": "j1", "status": "RUNNING"}
    dashboard.streams = [["one\n", "HANG"]]
    stream = client.tail_job_logs("j1")
    assert await anext(aiter(stream)) == "one\n"
    await asyncio.wait_for(stream.aclose(), 25)  # it is a generator


async def test_unknown_job_cannot_be_followed(client: DashboardClient) -> None:
    with pytest.raises(TaskSubmissionError, match="has no job j1"):
        await collect(client)


async def test_packages(dashboard: Dashboard, client: DashboardClient, tmp_path: Path) -> None:
    file = tmp_path / "p.zip"
    file.write_bytes(b"z" * 3_000_000)
    assert await client.package_exists("gcs://_ray_pkg_1.zip") is False
    await client.upload_package("gcs://_ray_pkg_1.zip", file)
    await client.upload_package("gcs://_ray_pkg_2.zip", b"small")
    assert await client.package_exists("gcs://_ray_pkg_1.zip") is True
    assert dashboard.packages == {"_ray_pkg_1.zip": b"z" * 3_000_000, "_ray_pkg_2.zip": b"small"}


async def test_package_that_is_too_large_for_the_cluster(client: DashboardClient) -> None:
    with pytest.raises(TaskSubmissionError, match="too large") as caught:
        await client.upload_package("gcs://_ray_pkg_1.zip", b"z" * 11 * 1024**2)
    assert "excludes" in (caught.value.next_step or "")


@pytest.mark.parametrize("uri", ["s3://b/x.zip", "gcs://../x.zip", "gcs://x", "x.zip"])
async def test_other_addresses_are_no_packages(uri: str, client: DashboardClient) -> None:
    with pytest.raises(TaskSubmissionError, match="not the address of a package"):
        await client.package_exists(uri)

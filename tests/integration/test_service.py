"""A service with real clusters: several programs, restarts of the service, and each item runs once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import ray_multicluster_scheduler as rmcs
from ray_multicluster_scheduler import TaskCancelledError, TaskState, UnifiedScheduler, UnknownItemError
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.eventually import until
from tests.support.running_service import RunningService


@pytest.fixture(scope="module")
def service(fleet: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    state = tmp_path_factory.mktemp("service") / "state"
    with RunningService(Path(fleet.config_path), state) as running:  # type: ignore[attr-defined]
        yield running
        running.stop()


@pytest.fixture
def client(service: RunningService) -> Iterator[UnifiedScheduler]:
    with UnifiedScheduler(address=service.address, token=service.token) as one:
        yield one


def noted(path: str, name: str, seconds: float) -> str:
    """Records its attempt, start and end."""
    import time

    from ray_multicluster_scheduler import current

    me = current()
    with open(path, "a") as file:
        file.write(f"{name} {me.attempt} began\n")
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write(f"{name} {me.attempt} ended\n")
    return name


noted.__module__ = "__main__"  # pickled by value: nothing of these tests has to be shipped


def test_values_errors_output_and_reasons(client: UnifiedScheduler) -> None:
    def say(what: str) -> int:
        print(what)
        return len(what)

    handle = client.submit_task_async(say, ("hello",))
    assert handle.result(60) == 5
    assert handle.logs() == "hello\n"
    assert handle.explain()["state"] == "SUCCEEDED"
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        client.submit_task(lambda: 1 / 0)
    assert "on cluster" in raised.value.__notes__[0]


def test_values_of_others_as_arguments(client: UnifiedScheduler) -> None:
    first = client.submit_task_async(lambda: [1, 2, 3])
    kept = client.put(10)
    second = client.submit_task_async(lambda a, b: sum(a) * b, (first, kept))
    assert second.result(60) == 60
    large = client.submit_task_async(lambda: b"x" * 3_000_000)
    assert client.submit_task(len, (large,)) == 3_000_000


def test_a_job_seen_by_another_program(client: UnifiedScheduler, service: RunningService) -> None:
    job = client.submit_job("echo said; true")
    with UnifiedScheduler(address=service.address, token=service.token) as other:
        assert other.handle(job).result(120) == "SUCCEEDED"
        assert "said" in other.job_logs(job)
        assert [row["job_id"] for row in other.list_jobs("SUCCEEDED")].count(job) == 1
        with pytest.raises(UnknownItemError):
            other.explain("task-of-nobody")


def test_the_message_of_a_failed_job_has_no_secrets(client: UnifiedScheduler, service: RunningService) -> None:
    failed = client.submit_job_async('sh -c "exit 3" --password=failing-entry-qqq --token=failtok-qqq')
    error = failed.exception(120)
    output = f"{error} {client.job_logs(failed.id)} {client.explain(failed.id)}"
    assert "--password=••• --token=•••" in client.job_logs(failed.id), "Ray writes the command line into the log"
    assert "qqq" not in output


def test_folders_and_modules_are_shipped_with_items(client: UnifiedScheduler, tmp_path: Path) -> None:
    work, module = tmp_path / "work", tmp_path / "brought_along"
    work.mkdir()
    module.mkdir()
    (work / "words.txt").write_text("from the folder")
    (module / "__init__.py").write_text("WORD = 'from the module'\n")

    def read() -> str:
        import brought_along  # type: ignore[import-not-found]  # it is made above

        return f"{open('words.txt').read()}, {brought_along.WORD}"

    env = {"working_dir": str(work), "py_modules": [str(module)]}
    task = client.submit_task_async(read, runtime_env=env, start_after=3.0)
    job = client.submit_job_async("cat words.txt", runtime_env={"working_dir": str(work)}, start_after=3.0)
    assert task.accepted(60)
    assert job.accepted(60)
    shutil.rmtree(work)
    shutil.rmtree(module)
    assert task.result(90) == "from the folder, from the module"
    job.result(90)
    assert "from the folder" in job.logs()


def test_cancel_by_id_alone(client: UnifiedScheduler, service: RunningService) -> None:
    handle = client.submit_task_async(time.sleep, (600,))
    until(lambda: handle.state is TaskState.RUNNING, 60)
    with UnifiedScheduler(address=service.address, token=service.token) as other:
        assert other.cancel(handle.id) is True
    with pytest.raises(TaskCancelledError):
        handle.result(60)


def test_work_continues_after_its_program_has_ended(service: RunningService, tmp_path: Path) -> None:
    path = tmp_path / "noted"
    program = f"""
import time, ray_multicluster_scheduler as rmcs
def work():
    time.sleep(3)
    open({str(path)!r}, "w").write("done")
    return 42
print(rmcs.submit_task_async(work, idempotency_key="once").id)
"""
    environ = {"RMCS_HOME": str(service.state), "PATH": "/usr/bin:/bin"}  # where it finds address and token
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert not path.exists() or time.monotonic() - began > 3
    with UnifiedScheduler(address=service.address, token=service.token) as later:
        assert later.handle(ended.stdout.strip()).result(60) == 42
    assert path.read_text() == "done"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_running_and_waiting_items_survive_a_restart(
    service: RunningService, client: UnifiedScheduler, tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "noted"
    names = [f"t{number}" for number in range(10)]
    handles = [client.submit_task_async(noted, (str(path), name, 2.0)) for name in names]
    job = client.submit_job_async(f"echo job began >> {path}; sleep 3; echo job ended >> {path}")
    until(lambda: path.exists() and len(path.read_text().splitlines()) >= 2, 60)
    if how is signal.SIGKILL:
        service.kill()
    else:
        assert service.stop() == 0
    waiting = client.submit_task_async(lambda: "accepted by the next one")
    service.start()
    assert rmcs.get(handles, timeout=120) == names
    assert job.result(120) == "SUCCEEDED"
    assert waiting.result(60) == "accepted by the next one"
    # Each ran once; one that was recalled before it began did so in a later attempt.
    lines = [(line.split()[0], line.split()[-1]) for line in path.read_text().splitlines()]
    expected = [(name, what) for name in [*names, "job"] for what in ("began", "ended")]
    assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_output_is_readable_after_a_restart(
    service: RunningService, client: UnifiedScheduler, tmp_path: Path, how: signal.Signals
) -> None:
    go_on = tmp_path / "go on"

    def talk(go_on: str) -> None:
        import os
        import time

        print("before")
        while not os.path.exists(go_on):
            time.sleep(0.1)
        print("after")

    over = client.submit_task_async(print, ("it is over",))
    over.result(60)
    goes_on = client.submit_task_async(talk, (str(go_on),))
    until(lambda: goes_on.logs() == "before\n", 60)
    if how is signal.SIGKILL:
        time.sleep(6.0)  # what runs is written every five seconds
        service.kill()
    else:
        assert service.stop() == 0
    service.start()
    assert client.handle(over.id).logs() == "it is over\n"
    go_on.touch()
    goes_on.result(60)
    assert goes_on.logs() == "before\nafter\n"
    service.kill()
    service.start()
    assert client.handle(goes_on.id).logs() == "before\nafter\n"


def test_a_second_service_on_the_same_folder_is_refused(service: RunningService) -> None:
    command = [sys.executable, "-m", "ray_multicluster_scheduler.main", "up", "--port", "0"]
    command += ["--config", str(service.config), "--state", str(service.state)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert f"process {service.process.pid}" in refused.stderr
    assert service.address in refused.stderr
    assert "Traceback" not in refused.stderr


def test_work_continues_while_the_service_is_down_longer_than_a_lease(fleet: object, tmp_path: Path) -> None:
    """As for an upgrade: it is stopped for an announced time, and no running work is repeated."""
    config = Path(fleet.config_path)  # type: ignore[attr-defined]  # a LocalFleet
    times = {"heartbeat_s": 1, "lease_s": 8, "lost_after_s": 20}
    with RunningService(config, tmp_path / "state", **times) as service:
        with UnifiedScheduler(address=service.address, token=service.token) as client:
            marks = tmp_path / "marks"
            handle = client.submit_task_async(noted, (str(marks), "long", 12.0))
            until(marks.exists, 60)
            down = [sys.executable, "-m", "ray_multicluster_scheduler.main", "down", "--away", "300"]
            subprocess.run([*down, "--state", str(service.state)], check=True, timeout=60)
            assert service.process.wait(30) == 0
            time.sleep(14.0)  # longer than its lease, and until after its end
            service.start()
            assert handle.result(60) == "long"
            assert handle.attempt == 1, "\n".join(step["sentence"] for step in handle.explain()["history"])
            assert marks.read_text().splitlines() == ["long 1 began", "long 1 ended"]
        service.stop()


def test_an_idle_agent_ends_with_the_service(fleet: LocalFleet, tmp_path: Path) -> None:
    """Long before its lease expires, and without delaying the stop."""

    def agents() -> list[str]:
        url = f"{fleet.direct_dashboard('mac')}/api/jobs/"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {fleet.token('mac')}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return [job["status"] for job in json.load(answer) if f"-{control_plane}-" in str(job["submission_id"])]

    with RunningService(Path(fleet.config_path), tmp_path / "state") as service:
        with UnifiedScheduler(address=service.address, token=service.token) as client:
            handle = client.submit_task_async(lambda: 1, allow_clusters=["mac"])
            assert handle.result(60) == 1
        control_plane = str(json.loads((service.state / "server.json").read_text())["control_plane"])
        assert agents() == ["RUNNING"]
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < 25
        until(lambda: agents() == ["SUCCEEDED"], 35)

"""`rmcs job` as `ray job`, on real clusters: submit, follow, status, stop."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.config import load_config
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.running_service import RunningService

RMCS = f"{shlex.quote(sys.executable)} -m ray_multicluster_scheduler"
COUNT = "import time\nfor n in range(3): print('line', n, flush=True); time.sleep(0.5)"


@pytest.fixture(scope="module")
def service(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    state = tmp_path_factory.mktemp("service") / "state"
    with RunningService(Path(fleet.config_path), state) as running:
        yield running
        running.stop()


def shell(service: RunningService, line: str) -> subprocess.CompletedProcess[str]:
    """Run the command; address and token come from the state folder."""
    return _run(line.replace("rmcs ", f"{RMCS} "), RMCS_HOME=str(service.state))


def _run(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", line]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120)


def test_submit_and_follow(service: RunningService, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNT)
    done = shell(
        service,
        f"id=$(rmcs job submit --no-wait --working-dir {tmp_path} -- python count.py) && rmcs job logs --follow $id",
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("line")] == ["line 0", "line 1", "line 2"]
    status = shell(service, "rmcs job status last")
    assert (status.returncode, "SUCCEEDED" in status.stdout) == (0, True)


def test_submit_waits_and_exits_like_the_job(service: RunningService) -> None:
    good = shell(service, "rmcs job submit -- echo said so")
    assert good.returncode == 0, good.stderr
    assert "said so" in good.stdout
    bad = shell(service, "rmcs job submit --submission-id broken -- python -c 'print(1); raise SystemExit(3)'")
    assert bad.returncode == 100, bad.stderr
    assert "broken failed" in bad.stderr
    assert shell(service, "rmcs task show broken").returncode == 100
    status = shell(service, "rmcs job status broken")
    # The job and Ray write its log at the same time, so the order of lines varies.
    assert (status.returncode, "1" in status.stdout.splitlines()) == (100, True), status.stdout
    assert "rmcs job logs broken" in status.stderr


def test_a_task_that_failed_shows_the_traceback_of_its_cluster(service: RunningService, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "from ray_multicluster_scheduler import submit_task_async\n"
        "def parse(text):\n    return int(text)\n"
        "failed = submit_task_async(parse, ('forty-two',))\n"
        "failed.exception()\nprint(failed.id)\n"
    )
    done = shell(service, f"cd {tmp_path}; rmcs task show $({shlex.quote(sys.executable)} fails.py)")
    assert done.returncode == 100, done.stderr
    shown = done.stdout.partition("\nTraceback (most recent call last):\n")[2].splitlines()
    assert shown[0].endswith("in parse"), done.stdout
    assert shown[-1] == "ValueError: invalid literal for int() with base 10: 'forty-two'"


def test_the_same_line_works_with_ray_job(service: RunningService, config_path: Path, ray_python: Path) -> None:
    """Except the name of the program and the address."""
    flags = (
        """--runtime-env-json '{"env_vars": {"WHO": "ann"}}' --metadata-json '{"a": "b"}' --entrypoint-num-cpus 0.5"""
    )
    line = f"job submit {flags} -- python -c 'import os; print(os.environ[\"WHO\"])'"
    ours = shell(service, f"rmcs {line}")
    cluster = load_config(config_path).clusters[0]
    environ = {"RAY_ADDRESS": str(cluster.dashboard), "RAY_AUTH_MODE": "token"}
    environ["RAY_AUTH_TOKEN_PATH"] = str(cluster.auth_token_path)
    theirs = _run(f"{ray_python.parent / 'ray'} {line}", **environ)
    assert (ours.returncode, theirs.returncode) == (0, 0), ours.stderr + theirs.stderr
    assert "ann" in ours.stdout.splitlines()
    assert "ann" in theirs.stdout.splitlines()


def test_stop_and_ctrl_c(service: RunningService) -> None:
    environ = {**os.environ, "RMCS_HOME": str(service.state)}
    command = [*shlex.split(RMCS), "job", "submit", "--submission-id", "long", "--", "sh", "-c", "echo up; sleep 600"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "up" not in process.stdout.readline():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "rmcs job logs -f long" in output
    assert shell(service, "rmcs job status long").returncode == 101
    assert shell(service, "rmcs job stop long --timeout 60").returncode == 0
    assert shell(service, "rmcs job status long").returncode == 103

"""A disk that is full or cannot be written is one sentence; in processes of their own, as a shell has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.test_job import Dashboard, end_when_it_is_followed
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
RMCS = f"{sys.executable} -m ray_multicluster_scheduler"


def shell(line: str) -> tuple[int, list[str]]:
    """Its exit code, and the lines that it wrote to stderr."""
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.splitlines()


@FULL
@pytest.mark.parametrize("words", ["status", "task list -o json", "version", "explain NO_CAPACITY"])
def test_output_to_a_full_disk(service: HttpService, words: str) -> None:
    assert shell(f"{RMCS} {words} > /dev/full") == (
        1,
        [
            "rmcs: error: The output cannot be written: No space left on device.",
            "What to do: free space there, or write it elsewhere",
        ],
    )


@pytest.mark.parametrize("words", ["status", "task list -o json", "version"])
def test_output_that_is_closed(service: HttpService, words: str) -> None:
    assert shell(f"{RMCS} {words} >&-") == (0, [])


@FULL
def test_an_order_is_done_wherever_its_words_go(service: HttpService) -> None:
    """Whoever orders it again because of the exit code has it twice."""
    for at, where in enumerate([">&-", "2>&-", "2>/dev/full"]):
        code, _ = shell(f"{RMCS} job submit --no-wait --submission-id j{at} -- true {where}")
        assert (code, service.get(f"/api/v1/items/j{at}")["kind"]) == (0, "job")


@FULL
@pytest.mark.parametrize(
    ("words", "code"), [("task show nothing-such", 102), ("no-such-command", 2), ("status --every x", 2)]
)
def test_exit_code_is_kept_if_stderr_is_full(service: HttpService, words: str, code: int) -> None:
    assert shell(f"{RMCS} {words} 2>/dev/full") == (code, [])


@pytest.mark.parametrize(
    ("words", "code"), [("config check /nope", 2), ("task show nothing-such", 102), ("no-such-command", 2)]
)
def test_exit_code_is_kept_if_stderr_is_closed(service: HttpService, words: str, code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*RMCS.split(), *words.split()], cwd=ROOT, stderr=write, check=False)
    finally:
        os.close(write)
    assert done.returncode == code


@FULL
def test_job_end_is_reported_if_stderr_becomes_full(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -o json, what a job prints is on stderr."""

    class Filling(Dashboard):
        async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
            monkeypatch.setattr(sys, "stderr", full)
            async for piece in super().tail_job_logs(submission_id):
                yield piece

    with open("/dev/full", "w", buffering=1, encoding="utf-8") as full:
        service.plane.runtime.clients = Filling()  # type: ignore[assignment]  # a fake
        ending = end_when_it_is_followed(service, "j1")
        done = rmcs("job", "submit", "-o", "json", "--submission-id", "j1", "--", "true")
        ending.join()
        assert (done.code, json.loads(done.out)["status"]) == (0, "SUCCEEDED")
        assert sys.stderr is not full
        sys.stderr.close()
        with suppress(OSError):  # what it did not take is tried once more
            full.close()


def test_without_stderr_messages_do_not_get_into_the_data(service: HttpService) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{RMCS} task show nothing-such 2>&-"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (102, "")


def test_a_state_folder_on_a_full_disk(tmp_path: Path) -> None:
    config = tmp_path / "clusters.yaml"
    config.write_text("clusters: [{name: mac, dashboard: 'http://127.0.0.1:9'}]\n")
    state = tmp_path / "state"
    # No file may become longer than nothing: writing fails where it would on a full disk.
    code, output = shell(f"ulimit -f 0; exec {RMCS} up --config {config} --state {state} --port 0")
    assert code == 2
    assert output[-2:] == [
        f"rmcs: error: The state folder {state} cannot be used: File too large.",
        "What to do: give another one with --state or RMCS_HOME",
    ]
    assert not any("Traceback" in line for line in output)


def test_a_local_fleet_where_no_folder_can_be_made(tmp_path: Path, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "file" / "rmcs"))
    monkeypatch.setenv("RMCS_RAY_PYTHON", sys.executable)
    done = rmcs("fleet", "up")
    assert done.code == 2
    assert "rmcs: error: The folder " in done.err
    assert "cannot be made: Not a directory.\nWhat to do: set RMCS_HOME to a folder that you can write to." in done.err


def test_a_local_fleet_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "rmcs"))
    monkeypatch.setenv("RMCS_RAY_PYTHON", sys.executable)
    code, output = shell(f"ulimit -f 0; exec {RMCS} fleet up -n 1")
    assert code == 2
    assert output[0] == "rmcs: error: No folder for temporary files can be written; /tmp: File too large."
    assert "TMPDIR" in output[1]


def test_a_local_fleet_whose_home_is_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "rmcs"
    monkeypatch.setenv("RMCS_HOME", str(home))
    monkeypatch.setenv("RMCS_RAY_PYTHON", sys.executable)
    # Where temporary files are there is room: only the process that holds the fleet finds that there is none at home.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, tempfile\n"
        "if sys.orig_argv[-1].endswith('.local_fleet.background'):\n"
        "    import resource\n"
        "    tempfile.gettempdir()\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    code, output = shell(f"exec {RMCS} fleet up -n 1")
    assert code == 1, output
    at = next((at for at, line in enumerate(output) if line.startswith("rmcs: error: ")), 0)  # notices come before it
    error, next_step = output[at : at + 2]
    assert error.startswith("rmcs: error: The files of the local fleet cannot be written: File too large: /"), output
    assert "/fleet.json" in error
    assert "RMCS_HOME" in next_step


@pytest.mark.parametrize("words", ["trace", "debug-dump"])
def test_a_disk_that_is_full_is_no_wrong_command_line(service: HttpService, tmp_path: Path, words: str) -> None:
    file = tmp_path / "file"
    code, output = shell(f"ulimit -f 0; {RMCS} {words} {file}")
    assert (code, output) == (
        1,
        [
            f"rmcs: error: {file} cannot be written: File too large.",
            "What to do: free space there, or write it elsewhere",
        ],
    )
    (tmp_path / "empty").touch()
    code, output = shell(f"{RMCS} {words} {tmp_path}/empty/file")
    assert code == 2, output


@pytest.mark.parametrize("option", ["--save-trace", "--record", "--plot"])
def test_a_file_is_replaced_only_after_the_new_one_is_complete(tmp_path: Path, option: str) -> None:
    file = tmp_path / "file"
    file.write_text("old " * 10_000)
    file.chmod(0o640)
    ask = f"{RMCS} simulate --nodes 'mac=1x{{CPU: 2}}' --synthetic 'items=2000 over=1h' {option} {file} --force"
    code, output = shell(f"ulimit -f 8; {ask}")
    assert code == 1, output
    assert output[-2:] == [
        f"rmcs: error: {file} cannot be written: File too large.",
        "What to do: free space there, or write it elsewhere",
    ]
    assert file.read_text() == "old " * 10_000
    assert [one.name for one in tmp_path.iterdir()] == ["file"], "half of the new one is not left"
    assert shell(ask)[0] == 0
    assert not file.read_text().startswith("old old")
    assert file.stat().st_mode & 0o777 == 0o640

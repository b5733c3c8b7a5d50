"""`rmcs fleet up / status / down` on the command line, with a fake Ray."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

RUN = "from ray_multicluster_scheduler.cli.commands.fleet import app; app()"


class Rmcs:
    """Runs `rmcs fleet …` in a home of its own."""

    def __init__(self, fake: Path, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "RMCS_RAY_PYTHON": str(fake), "RMCS_HOME": str(home), "COLUMNS": "200"}

    def __call__(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(self.command(*words), env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", RUN, *words]

    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self("status", "-o", "json"))
        return answer


@pytest.fixture
def rmcs(fake_python: Path, base: Path, tmp_path: Path) -> Iterator[Rmcs]:
    command = Rmcs(fake_python, tmp_path / "home")
    yield command
    command("down")


def _left(pids: list[int], base: Path, within_s: float = 60.0) -> list[object]:
    deadline = time.monotonic() + within_s
    while True:
        alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        found: list[object] = [*alive, *base.iterdir()]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _pids(status: dict[str, Any]) -> list[int]:
    return [pid for cluster in status["clusters"] for pid in cluster["pids"]]


def test_the_fleet_outlives_up_and_down_removes_it(rmcs: Rmcs, base: Path) -> None:
    assert rmcs.json() == {"up": False, "config": None, "clusters": []}
    assert "No local fleet is up" in rmcs("status")

    text = rmcs("up", "--clusters", "3", "--cpus", "1")

    config = rmcs.home / "fleet" / "clusters.yaml"
    assert f"export RMCS_CONFIG={config}" in text
    assert "linux: starting; Ray's own ports behind its addresses are from " in text
    written = yaml.safe_load(config.read_text())
    assert written["settings"] == {"submission_interval_s": 0}, "nobody waits between two jobs of a trial"
    entries = written["clusters"]
    assert [(e["name"], e["tags"]) for e in entries] == [
        ("linux", ["linux", "x86_64"]),
        ("mac", ["macos", "arm64"]),
        ("cluster3", []),
    ]
    status = rmcs.json()
    assert status["up"]
    assert status["config"] == str(config)
    assert [cluster["state"] for cluster in status["clusters"]] == ["up", "up", "up"]
    assert [cluster["dashboard"] for cluster in status["clusters"]] == [e["dashboard"] for e in entries]
    assert all(cluster["pids"] for cluster in status["clusters"])

    again = rmcs("up")
    assert "up already" in again
    assert "127.0.0.1" in again
    assert _pids(rmcs.json()) == _pids(status), "the second one started nothing"

    assert "stopped" in rmcs("down")
    assert _left(_pids(status), base, within_s=0) == []
    assert not config.exists()
    assert "no local fleet is up" in rmcs("down")


def test_a_fleet_under_another_home_is_named(rmcs: Rmcs, fake_python: Path, tmp_path: Path) -> None:
    """A second one would share the CPUs and the memory without a word."""
    rmcs("up", "--clusters", "1")
    second = Rmcs(fake_python, tmp_path / "other")
    named = (
        f"another local fleet of yours (linux) runs, with RMCS_HOME={rmcs.home}; use it: export "
        f"RMCS_CONFIG={rmcs.home / 'fleet' / 'clusters.yaml'}; stop it: RMCS_HOME={rmcs.home} rmcs fleet down"
    )
    for words in (("status",), ("down",), ("up", "--clusters", "1")):
        assert named in second(*words), words
    assert "another local fleet" not in second("status"), "this home has one of its own now"
    assert "is stopped" in second("down")
    assert rmcs.json()["up"]
    rmcs("down")
    assert "another local fleet" not in second("status")


def test_json_output(rmcs: Rmcs) -> None:
    """Data on stdout, messages on stderr."""

    def reported(form: str, *words: str) -> Any:
        done = subprocess.run(
            rmcs.command(*words, "-o", form), env=rmcs.env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert all(line.startswith("rmcs: ") for line in done.stderr.splitlines())
        return json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)

    up = reported("json", "up", "--clusters", "1")
    assert [one["name"] for one in up["clusters"]] == ["linux"]
    assert up == reported("yaml", "up") == reported("yaml", "status") == reported("json", "status")
    assert reported("json", "down") == {"stopped": True}
    assert reported("yaml", "down") == {"stopped": False}
    assert reported("yaml", "status") == {"up": False, "config": None, "clusters": []}


def test_a_paused_cluster_shows_as_paused_and_one_that_died_as_down(rmcs: Rmcs) -> None:
    rmcs("up")
    linux, mac = (psutil.Process(min(cluster["pids"])) for cluster in rmcs.json()["clusters"])
    for process in rmcs.json()["clusters"][0]["pids"]:
        os.kill(process, signal.SIGSTOP)
    mac.kill()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (states := _states(rmcs)) != {"linux": "paused", "mac": "down"}:
        time.sleep(0.2)
    assert states == {"linux": "paused", "mac": "down"}
    assert linux.is_running()


def _until(rmcs: Rmcs, **wanted: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (states := _states(rmcs)) != wanted:
        time.sleep(0.2)
    assert states == wanted


def test_a_second_up_restarts_only_dead_clusters(rmcs: Rmcs) -> None:
    rmcs("up")
    before = {cluster["name"]: cluster for cluster in rmcs.json()["clusters"]}
    psutil.Process(min(before["mac"]["pids"])).kill()
    _until(rmcs, linux="up", mac="down")
    assert "mac is down: it died; `rmcs fleet up` starts it again" in rmcs("status")

    text = rmcs("up")

    assert "the local fleet is up, but mac died: restarting" in text
    assert "mac: ready after" in text
    assert "linux: " not in text
    after = {cluster["name"]: cluster for cluster in rmcs.json()["clusters"]}
    assert _states(rmcs) == {"linux": "up", "mac": "up"}
    assert after["linux"] == before["linux"], "not even touched"
    assert not set(after["mac"]["pids"]) & set(before["mac"]["pids"])
    assert [after["mac"][key] for key in ("head_address", "dashboard")] == [
        before["mac"][key] for key in ("head_address", "dashboard")
    ], "clusters.yaml stays true"
    assert "a local fleet is up already" in rmcs("up")


def test_a_failed_restart_reports_its_reason(rmcs: Rmcs, tmp_path: Path) -> None:
    rmcs("up", "--clusters", "1")
    psutil.Process(min(_pids(rmcs.json()))).kill()
    _until(rmcs, linux="down")
    (tmp_path / "fake-venv" / "bin" / "python").write_text("#!/bin/sh\necho fake: gone >&2; exit 3\n")
    text = rmcs("up", status=1)
    assert "'linux' did not start in 3 attempts" in text
    assert "fake: gone" in text


def test_a_cluster_without_supervisor_is_lost(rmcs: Rmcs) -> None:
    rmcs("up", "--clusters", "1")
    (record,) = Path(json.loads((rmcs.home / "fleet" / "fleet.json").read_text())["root"]).glob("*/cluster.json")
    os.kill(json.loads(record.read_text())["supervisor"]["pid"], signal.SIGKILL)
    _until(rmcs, linux="lost")
    text = rmcs("up", status=1)
    assert "linux is lost: its supervisor process was killed; `rmcs fleet down`, then `rmcs fleet up`" in text


def test_invalid_or_aborted_requests_do_not_end_the_fleet(rmcs: Rmcs) -> None:
    rmcs("up", "--clusters", "1")
    root = json.loads((rmcs.home / "fleet" / "fleet.json").read_text())["root"]
    for output in (b"", b"{\n", b'{"start": 3}\n', b'{"start": ["nobody"]}\n'):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(f"{root}/control.sock")
            line.sendall(output)
            line.shutdown(socket.SHUT_WR)
            if output:
                assert json.loads(line.makefile().readline())["event"] == "failed"
    psutil.Process(min(_pids(rmcs.json()))).kill()
    _until(rmcs, linux="down")
    assert "restarted" in rmcs("up")


def _states(rmcs: Rmcs) -> dict[str, str]:
    return {cluster["name"]: cluster["state"] for cluster in rmcs.json()["clusters"]}


def test_a_fleet_whose_daemon_was_killed_is_gone_and_can_be_restarted(rmcs: Rmcs, base: Path) -> None:
    rmcs("up", "--clusters", "1")
    pids = _pids(rmcs.json())
    holder = json.loads((rmcs.home / "fleet" / "fleet.json").read_text())["holder"]["pid"]
    os.kill(holder, signal.SIGKILL)
    assert _left(pids, base) == []
    assert rmcs.json()["up"] is False
    rmcs("up", "--clusters", "1")
    assert rmcs.json()["up"] is True


def test_up_in_the_foreground_ends_with_ctrl_c(rmcs: Rmcs, base: Path) -> None:
    process = subprocess.Popen(
        rmcs.command("up", "--foreground", "--clusters", "1"),
        env=rmcs.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "stop it" in line:
            break
    pids = _pids(rmcs.json())
    assert pids
    assert "up already" in rmcs("up")
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert "is stopped" in rest
    assert process.returncode == 0
    assert _left(pids, base, within_s=0) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_up_interrupted_during_start_removes_all_processes(rmcs: Rmcs, base: Path, how: signal.Signals) -> None:
    process = subprocess.Popen(
        rmcs.command("up"),
        env=rmcs.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    while "starting; Ray's own ports" not in process.stderr.readline():
        pass
    os.killpg(process.pid, how)
    _, output = process.communicate(timeout=60)
    assert process.returncode != 0
    if how is signal.SIGINT:
        assert "rmcs: the clusters that had started are stopped again: nothing is left" in output
    assert _left([], base) == []
    deadline = time.monotonic() + 60
    while rmcs.json()["up"] and time.monotonic() < deadline:
        time.sleep(0.1)  # the holder is about to exit
    assert rmcs.json()["up"] is False


def test_a_fleet_that_cannot_start_reports_its_reason(rmcs: Rmcs, base: Path) -> None:
    rmcs.env["FAKE_RAY_FAIL"] = "1"
    text = rmcs("up", "--clusters", "1", status=1)
    assert "'linux' did not start" in text
    assert "no luck today" in text
    assert _left([], base, within_s=0) == []


def test_a_daemon_without_output_reports_its_exit_code(rmcs: Rmcs, base: Path, tmp_path: Path) -> None:
    """For example, its log cannot be written."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif sys.orig_argv[-1].endswith('.local_fleet.background'): os._exit(7)\n"
    )
    rmcs.env["PYTHONPATH"] = str(tmp_path)
    text = rmcs("up", "--clusters", "1", status=1)
    assert f"ended while it was starting: exit code 7, and {rmcs.home / 'fleet' / 'fleet.log'} is empty" in text


def test_up_with_other_options_keeps_the_running_fleet(rmcs: Rmcs) -> None:
    rmcs("up", "--clusters", "1")
    use = f"rmcs: use it:  export RMCS_CONFIG={rmcs.home / 'fleet' / 'clusters.yaml'}"
    text = rmcs("up", "-n", "3", "--cpus", "4")
    assert "rmcs: a local fleet is up already" in text
    assert "with 1 cluster, not 3 and 2 CPUs each, not 4" in text
    assert use in text
    for same in (["up"], ["up", "-n", "1"], ["up", "-n", "1", "--cpus", "2"]):
        text = rmcs(*same)
        assert "it stays as it is" not in text
        assert "--foreground" not in text
        assert use in text
    assert use in rmcs("status")
    text = rmcs("up", "--foreground")
    assert "rmcs: --foreground is ignored: the fleet is already up in the background" in text
    assert "`rmcs fleet down` first" in text

"""Commands of an operator on real clusters: `rmcs clusters`, `rmcs doctor` and `rmcs demo`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

RMCS = [sys.executable, "-m", "ray_multicluster_scheduler"]


def rmcs(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RMCS, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)


def test_clusters_as_json(config_path: Path) -> None:
    done = rmcs("clusters", "-o", "json", "--config", str(config_path))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"linux", "mac"}
    assert rows["mac"]["tags"] == ["macos", "arm64"]
    assert rows["linux"]["total"]["CPU"] == 2
    assert rows["linux"]["ray_version"]


def test_clusters_as_a_table(config_path: Path) -> None:
    done = rmcs("clusters", RMCS_CONFIG=str(config_path))
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert lines["CLUSTER"].split()[:3] == ["CLUSTER", "STATE", "CARRIER"]
    assert "macos,arm64" in lines["mac"]
    assert "\x1b" not in done.stdout


def test_clusters_without_any_configuration(tmp_path: Path) -> None:
    done = subprocess.run([*RMCS, "clusters"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "rmcs fleet up" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_passes_real_clusters_and_fails_a_lost_one(config_path: Path, tmp_path: Path) -> None:
    home = {"RMCS_HOME": str(tmp_path / "home")}
    done = rmcs("doctor", "--deep", "--config", str(config_path), **home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("a task ran there and returned") == 2
    config = yaml.safe_load(config_path.read_text())
    dead, blind = config["clusters"]
    dead["dashboard"] = "http://127.0.0.1:9"
    blind.pop("auth_token_path", None)
    blind["auth_token"] = "wrong"
    (tmp_path / "clusters.yaml").write_text(yaml.safe_dump(config))
    done = rmcs("doctor", "-o", "json", "--config", str(tmp_path / "clusters.yaml"), **home)
    assert done.returncode == 100
    wrong = {one["about"]: one["code"] for one in json.loads(done.stdout) if one["verdict"] == "wrong"}
    assert wrong == {dead["name"]: "DASHBOARD_DOWN", blind["name"]: "WRONG_TOKEN"}


@pytest.fixture
def ray_env(ray_python: Path) -> dict[str, str]:
    return {**os.environ, "RMCS_RAY_PYTHON": str(ray_python)}


def test_the_demo_runs_to_the_end(ray_env: dict[str, str]) -> None:
    done = subprocess.run([*RMCS, "demo"], env=ray_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello from a Ray job on" in done.stdout
    assert "ValueError: invalid literal for int() with base 10: 'forty-two'" in done.stdout
    table = done.stdout.partition("WHY THERE")[2]
    assert table.count("\nsquare ") == 20
    assert " linux " in table
    assert " mac " in table
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl+C", "kill -9"])
def test_the_demo_cleans_up_after_any_end(ray_env: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    """Interrupted in the middle, it ends all its processes. Ctrl+C prints one line and exits with 130."""
    log = tmp_path / "out"
    with log.open("w") as out:
        demo = subprocess.Popen([*RMCS, "demo"], env=ray_env, stdout=out, stderr=out, start_new_session=True)
        try:
            started = family_when(demo, log, "2. Many small tasks spread")
            demo.send_signal(number)
            assert demo.wait(timeout=90) == (130 if number is signal.SIGINT else -9), log.read_text()
        finally:
            demo.kill()
            demo.wait()
    if number is signal.SIGINT:
        assert "rmcs: interrupted." in log.read_text()
    assert "Traceback" not in log.read_text()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive


def family_when(demo: subprocess.Popen[bytes], log: Path, text: str) -> list[psutil.Process]:
    """All processes that the demo has started by the time it prints this."""
    deadline = time.monotonic() + 180
    while text not in log.read_text():
        assert demo.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return psutil.Process(demo.pid).children(recursive=True)

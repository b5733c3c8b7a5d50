"""The small parts: description, interpreter, ports, command line and environment, config file, identities."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet, interpreter
from ray_multicluster_scheduler.local_fleet.layout import (
    Addresses,
    ClusterDir,
    base_dir,
    check_replaceable,
    remove_config,
    write_config,
)
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK, Ports, claim
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.ray_head import MARKER, cluster_environment, ray_command

PORTS = Ports(*range(101, 112))
BAD_DESCRIPTIONS = [
    ({"name": "a b"}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a", "num_cpus": -1}, "num_cpus"),
    ({"name": "a", "num_cpus": 1.5}, "num_cpus"),
    ({"name": "a", "num_gpus": -1}, "num_gpus"),
    ({"name": "a", "object_store_memory": 1}, "object_store_memory"),
    ({"name": "a", "config": {"dashboard": "http://elsewhere"}}, "dashboard"),
]


@pytest.mark.parametrize(("arguments", "word"), BAD_DESCRIPTIONS)
def test_a_wrong_description_names_cluster_and_key(arguments: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as caught:
        LocalCluster(**arguments)  # wrong on purpose
    assert caught.value.cluster == arguments["name"]
    assert caught.value.next_step


def test_a_fleet_needs_clusters_with_distinct_names() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        LocalFleet()
    with pytest.raises(ConfigurationError, match="'twin'"):
        LocalFleet(LocalCluster("twin"), LocalCluster("twin"))


def test_a_fleet_that_is_not_up_is_an_error() -> None:
    fleet = LocalFleet(LocalCluster("a"))
    for attempt in (lambda: fleet.config_path, lambda: fleet.kill("a"), lambda: fleet.token("a")):
        with pytest.raises(ConfigurationError, match="not up"):
            attempt()
    with pytest.raises(ConfigurationError, match=r"no cluster 'b'.*use one of a"):
        fleet.kill("b")
    fleet.stop()


class TestInterpreter:
    @pytest.fixture(autouse=True)
    def _nowhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("RMCS_RAY_PYTHON", raising=False)
        monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(interpreter, "__file__", str(tmp_path / "src/package/local_fleet/interpreter.py"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [])

    @staticmethod
    def _program(path: Path) -> Path:
        path.parent.mkdir(parents=True)
        path.symlink_to(sys.executable)
        return path

    def test_no_interpreter_gives_an_error_with_the_next_step(self) -> None:
        with pytest.raises(ConfigurationError, match=r"pip install 'ray\[default\]'") as caught:
            interpreter.find_ray_python()
        assert "make setup-ray" in str(caught.value)
        assert ".venv-ray" in str(caught.value)

    def test_search_order_of_interpreters_keeps_symlinks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        home = self._program(tmp_path / "home/ray-venv/bin/python")
        assert interpreter.find_ray_python() == home
        here = self._program(tmp_path / ".venv-ray/bin/python")
        assert interpreter.find_ray_python() == here
        checkout = self._program(tmp_path / "src/.venv-ray/bin/python")
        assert interpreter.find_ray_python() == checkout
        named = self._program(tmp_path / "named/python")
        monkeypatch.setenv("RMCS_RAY_PYTHON", str(named))
        assert interpreter.find_ray_python() == named
        argument = self._program(tmp_path / "argument/python")
        assert interpreter.find_ray_python(argument) == argument

    def test_a_named_interpreter_that_is_missing_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._program(tmp_path / ".venv-ray/bin/python")
        monkeypatch.setenv("RMCS_RAY_PYTHON", str(tmp_path / "missing"))
        with pytest.raises(ConfigurationError, match=r"RMCS_RAY_PYTHON names .*missing"):
            interpreter.find_ray_python()


class TestPorts:
    def test_a_taken_port_is_replaced(self) -> None:
        first, second = claim(), claim()
        first.release()
        second.release()
        with socket.socket() as other:
            other.bind((LOOPBACK, first.ports.dashboard))
            block = claim([first.base, second.base])
        assert block.base == second.base
        block.release()

    def test_a_claimed_block_is_not_claimed_again_before_anything_listens(self) -> None:
        held = claim()
        with pytest.raises(ConfigurationError, match="free ports"):
            claim([held.base])
        held.release()
        claim([held.base]).release()


def test_the_ray_command_line_has_every_described_option() -> None:
    cluster = LocalCluster(
        "a", num_cpus=3, num_gpus=1, memory=5_000_000, resources={"special": 2}, labels={"arch": "arm", "tier": "b"}
    )
    command = ray_command(Path("/v/bin/python"), cluster, PORTS, Path("/t/ray"))
    assert command[:6] == ["/v/bin/python", "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    for expected in (
        "--num-cpus=3",
        "--num-gpus=1",
        "--memory=5000000",
        '--resources={"special": 2}',
        "--labels=arch=arm,tier=b",
        "--temp-dir=/t/ray",
        "--node-ip-address=127.0.0.1",
        "--dashboard-host=127.0.0.1",
        f"--port={PORTS.gcs}",
    ):
        assert expected in command


def test_the_environment_of_a_cluster_is_clean() -> None:
    ours = {
        "PATH": "/usr/bin",
        "LANG": "C.UTF-8",
        "HOME": "/home/alice",
        "PYTHONPATH": "/src",
        "PYTHONHOME": "/x",
        "VIRTUAL_ENV": "/our/venv",
        "RMCS_CONFIG": "/etc/c.yaml",
        "RAY_ADDRESS": "1.2.3.4:6379",
        "RAY_AUTH_TOKEN": "of another cluster",
        "no_proxy": "corp",
    }
    env = cluster_environment(
        ours,
        python=Path("/v/bin/python"),
        ports=PORTS,
        marker="m",
        home=Path("/h"),
        tmp=Path("/t"),
        token_path=Path("/k"),
    )
    assert not {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RMCS_CONFIG", "RAY_ADDRESS", "RAY_AUTH_TOKEN"} & set(env)
    assert env["PATH"] == "/v/bin:/usr/bin"
    assert (env["HOME"], env["TMPDIR"], env["LANG"], env[MARKER]) == ("/h", "/t", "C.UTF-8", "m")
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/k")
    assert env["no_proxy"] == env["NO_PROXY"] == "corp,127.0.0.1,localhost"


class TestConfigFile:
    def test_the_config_has_the_description_and_no_secret(self, tmp_path: Path) -> None:
        cluster = LocalCluster(
            "a",
            tags=["x"],
            weight=1.2,
            prefer=True,
            runtime_env={"env_vars": {"A": "1"}},
            config={"max_running_jobs": 3},
        )
        folder = ClusterDir(tmp_path / "0")
        folder.make("s3cret")
        path = tmp_path / "clusters.yaml"
        write_config(path, "id", {"retries": 2}, [(cluster, Addresses("127.0.0.1:1", "http://127.0.0.1:2"), folder)])

        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.token.stat().st_mode) == 0o600
        assert "s3cret" not in path.read_text()
        assert yaml.safe_load(path.read_text()) == {
            "settings": {"retries": 2},
            "clusters": [
                {
                    "name": "a",
                    "head_address": "127.0.0.1:1",
                    "dashboard": "http://127.0.0.1:2",
                    "prefer": True,
                    "weight": 1.2,
                    "tags": ["x"],
                    "home_dir": str(folder.home),
                    "auth_token_path": str(folder.token),
                    "runtime_env": {"env_vars": {"A": "1"}},
                    "max_running_jobs": 3,
                }
            ],
        }

    def test_a_foreign_config_file_is_neither_replaced_nor_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "clusters.yaml"
        path.write_text("clusters: []\n")
        with pytest.raises(ConfigurationError, match="not written by a local fleet"):
            check_replaceable(path)
        remove_config(path, "id")
        assert path.exists()

        path.unlink()
        write_config(path, "id", {}, [])
        check_replaceable(path)
        remove_config(path, "another")
        assert path.exists()
        remove_config(path, "id")
        assert not path.exists()


def test_a_temp_dir_too_long_for_sockets_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("d" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert base_dir() == Path("/tmp")


def test_a_reused_process_id_is_not_taken_for_the_old_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        identity = Identity.of(child.pid)
        assert identity is not None
        assert identity.alive()
        assert not Identity(child.pid, identity.started - 100).alive()
    finally:
        child.kill()
        child.wait()
    assert not identity.alive()
    assert Identity.of(os.getpid()) is not None

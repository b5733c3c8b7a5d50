"""One fleet with two versions of Ray and two tokens: the newest Ray, and a one-year-old one (.venv-ray-old).

Ray Client could not do this from one process: it needs the cluster's exact version, and has one token for all. Ray
2.52 is the first with tokens, and treats them as the newest does: without one 401, with a wrong one 403.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
from ray_multicluster_scheduler.local_fleet.ray_head import fetch
from tests.support.eventually import until

BOTH = ("new", "old")
each = pytest.mark.parametrize("name", BOTH)


def there(name: str) -> dict[str, Any]:
    return {"preferred_cluster": name, "fallback": "wait"}


def version_of(python: Path) -> str:
    """Of the Ray that it has, without importing it."""
    code = "from importlib.metadata import version; print(version('ray'))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def versions(ray_python: Path, old_ray_python: Path) -> dict[str, str]:
    found = {"new": version_of(ray_python), "old": version_of(old_ray_python)}
    assert found["new"].split(".")[:2] != found["old"].split(".")[:2], "else this file shows nothing"
    return found


@pytest.fixture(scope="module")
def mixed(ray_python: Path, old_ray_python: Path) -> Iterator[LocalFleet]:
    with LocalFleet(
        LocalCluster("new", num_cpus=2),
        LocalCluster("old", num_cpus=2, ray_python=old_ray_python),
        settings={"submission_interval_s": 0, "resource_threshold": 1},
        ray_python=ray_python,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def scheduler(mixed: LocalFleet) -> Iterator[UnifiedScheduler]:
    with UnifiedScheduler(mixed.config_path) as one:
        yield one


def ray_there(payload: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    import ray

    from ray_multicluster_scheduler import current

    return ray.__version__, current().cluster, {**payload, "back": payload["there"][::-1]}


ray_there.__module__ = "__main__"  # pickled by value: nothing of ours has to be shipped


def counter() -> type:
    """Defined in a function, so that it is pickled by value."""

    class Counter:
        def __init__(self, start: int) -> None:
            self.value = start

        def add(self, number: int) -> int:
            self.value += number
            return self.value

        def fail(self) -> None:
            raise LookupError(f"at {self.value}")

    return Counter


@each
def test_tasks_and_values_both_ways(name: str, scheduler: UnifiedScheduler, versions: dict[str, str]) -> None:
    payload = {"there": b"\x00\xff" * 300_000, "text": "grüße", "set": frozenset({1, 2}), "nested": [(1.5, None)]}
    handles = [scheduler.submit_task_async(ray_there, (payload,), **there(name)) for _ in range(10)]
    for handle in handles:
        version, cluster, back = handle.result(120)
        assert (version, cluster) == (versions[name], name)
        assert handle.attempt == 1, "\n".join(map(str, handle.explain()["history"]))
        assert back == {**payload, "back": b"\xff\x00" * 300_000}


@each
def test_an_actor_with_calls(name: str, scheduler: UnifiedScheduler) -> None:
    actor = scheduler.submit_actor(counter(), (40,), **there(name))
    assert [call.result(60) for call in [actor.add.remote(1) for _ in range(20)]] == list(range(41, 61))
    assert isinstance(actor.fail.remote().exception(60), LookupError)
    actor.kill()


@each
def test_the_users_own_exception(name: str, scheduler: UnifiedScheduler) -> None:
    def refuse() -> None:
        raise KeyError("no such key there")

    with pytest.raises(KeyError, match="no such key there") as caught:
        scheduler.submit_task(refuse, **there(name))
    assert name in "\n".join(getattr(caught.value, "__notes__", []))


@each
def test_a_job(name: str, scheduler: UnifiedScheduler, versions: dict[str, str]) -> None:
    job = scheduler.submit_job_async('python -c "import ray; print(ray.__version__)"', **there(name))
    assert job.exception(120) is None
    assert job.cluster == name
    assert versions[name] in scheduler.job_logs(job.id)


def test_both_versions_are_shown(mixed: LocalFleet, scheduler: UnifiedScheduler, versions: dict[str, str]) -> None:
    rows = {row["name"]: row for row in scheduler.list_clusters(refresh=True)}
    assert {name: row["ray_version"] for name, row in rows.items()} == versions
    assert {row["state"] for row in rows.values()} == {"UP"}
    command = [sys.executable, "-m", "ray_multicluster_scheduler", "clusters", "-o", "json"]
    done = subprocess.run([*command, "--config", str(mixed.config_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {row["name"]: row["ray_version"] for row in json.loads(done.stdout)} == versions


def test_no_token_opens_the_other_cluster(mixed: LocalFleet) -> None:
    for name, other in (BOTH, BOTH[::-1]):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            fetch(mixed.addresses(name).dashboard + "/api/version", mixed.token(other))


@each
def test_a_wrong_token_is_reported_and_does_not_affect_the_other_cluster(
    name: str, mixed: LocalFleet, tmp_path: Path
) -> None:
    (other,) = {*BOTH} - {name}
    config = yaml.safe_load(Path(mixed.config_path).read_text())
    for entry in config["clusters"]:
        if entry["name"] == name:
            entry.pop("auth_token_path")
            entry["auth_token"] = mixed.token(other)
    path = tmp_path / "clusters.yaml"
    path.write_text(yaml.safe_dump(config))
    with UnifiedScheduler(path) as one:
        waits = one.submit_task_async(ray_there, ({"there": b"x"},), **there(name))
        assert one.submit_task(ray_there, ({"there": b"x"},), **there(other))[1] == other
        until(lambda: "token" in str(one.explain(waits.id)["sentence"]))
        rows = {row["name"]: row for row in one.list_clusters(refresh=True)}
        assert rows[other]["state"] == "UP"
        assert rows[name]["state"] == "CLUSTER_MISCONFIGURED"
        assert f"cluster {name} " in rows[name]["sentence"]
        assert "token" in rows[name]["sentence"]
        waits.cancel()

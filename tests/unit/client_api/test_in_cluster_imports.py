"""What a worker of a cluster loads: the verbs, with the standard library alone (and Ray, once one is called)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.app.client_api.execution_context import inside

ROOT = Path(__file__).resolve().parents[3]
RAY_PYTHON = ROOT / ".venv-ray" / "bin" / "python"
INTERPRETERS = [sys.executable, *([str(RAY_PYTHON)] if RAY_PYTHON.exists() else [])]
INSIDE = {"RMCS_CLUSTER": "mac", "RMCS_TASK_ID": "job-1", "RMCS_ATTEMPT": "1", "RMCS_FENCE": "1"}

ONLY_OUTSIDE = {"ClusterConfig", "FleetConfig", "Settings", "LocalCluster", "LocalFleet", "FleetExecutor"}
"""What is of no use inside a cluster: configuring and starting clusters, and the executor over many."""
EVERYWHERE = sorted(set(api.__all__) - ONLY_OUTSIDE)
LIGHT_OUTSIDE = sorted(
    name for name in EVERYWHERE if name[0].islower() and name not in ("get_unified_scheduler", "__version__")
)

HOOK = """
import sys
ALLOWED = sys.stdlib_module_names | {"ray_multicluster_scheduler"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Refuse())
"""


def run(interpreter: str, code: str, *, inside: bool, stdin: bytes = b"") -> str:
    """What this code prints in an interpreter that can import nothing but the standard library and our package."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("RMCS_", "PYTHON"))}
    done = subprocess.run(
        [interpreter, "-c", HOOK + code],
        cwd=ROOT,
        env={**environ, "PYTHONPATH": str(ROOT), **(INSIDE if inside else {})},
        input=stdin,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_name_that_needs_other_packages_has_a_placeholder_inside(interpreter: str) -> None:
    code = (
        "from ray_multicluster_scheduler import LocalFleet, SchedulerError\n"
        "try:\n    LocalFleet()\nexcept SchedulerError as error:\n    print(error.message)"
    )
    assert "LocalFleet" in run(interpreter, code, inside=True)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_every_name_can_be_imported_inside(interpreter: str) -> None:
    code = (
        f"from ray_multicluster_scheduler import {', '.join(EVERYWHERE)}\nprint(UnifiedScheduler.__name__, TaskHandle)"
    )
    reported = run(interpreter, code, inside=True)
    assert reported.split()[0] == "NativeScheduler"
    assert "NativeTaskHandle" in reported


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_verbs_can_be_imported_before_anybody_knows_where_this_is(interpreter: str) -> None:
    run(interpreter, f"from ray_multicluster_scheduler import {', '.join(LIGHT_OUTSIDE)}", inside=False)


@pytest.mark.parametrize("inside", [False, True])
def test_the_fixed_modules_can_be_imported(inside: bool) -> None:
    modules = [
        "from ray_multicluster_scheduler.app.client_api.submit_task import submit_task, submit_task_async, get, wait",
        "from ray_multicluster_scheduler.app.client_api.submit_actor import submit_actor, submit_actor_async",
        "from ray_multicluster_scheduler.app.client_api.submit_job import submit_job, wait_for_all_jobs",
        "from ray_multicluster_scheduler.app.client_api.verbs import explain, plan, list_clusters",
        "from ray_multicluster_scheduler.app.client_api.unified_scheduler import initialize_scheduler_environment",
        "from ray_multicluster_scheduler.app.client_api.unified_scheduler import get_unified_scheduler",
        "from ray_multicluster_scheduler.util import ActorPool",
    ]
    run(sys.executable, "\n".join(modules), inside=inside)


VERBS = [getattr(api, name) for name in LIGHT_OUTSIDE]


@pytest.mark.parametrize("verb", VERBS, ids=LIGHT_OUTSIDE)
def test_a_captured_verb_is_pickled_by_a_name_that_a_worker_can_load(verb: object) -> None:
    """A function of ``__main__`` is pickled by value, the verbs that it mentions by name."""
    assert pickle.loads(cloudpickle.dumps(verb)) is verb
    assert b"embedded" not in cloudpickle.dumps(verb)


def test_what_was_captured_is_loaded_inside() -> None:
    captured = [*VERBS, api.UnifiedScheduler, api.TaskHandle, api.JobHandle, api.ActorHandle, api.ObjectHandle]
    loaded = run(
        sys.executable,
        "import pickle, sys; print([one.__name__ for one in pickle.load(sys.stdin.buffer)][-5:])",
        inside=True,
        stdin=cloudpickle.dumps(captured),
    )
    assert loaded.split("'")[1::2] == [
        "NativeScheduler",
        "NativeTaskHandle",
        "NativeJobHandle",
        "NativeActorHandle",
        "NativeObjectHandle",
    ]


def test_a_program_is_outside() -> None:
    assert not inside()


@pytest.mark.parametrize("variables", [INSIDE, {"RMCS_INSIDE": "mac"}], ids=["a job", "any worker of an agent's job"])
def test_what_shows_that_we_are_inside(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert inside()


def test_a_preferred_cluster_in_the_environment_is_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_CLUSTER", "mac")
    assert not inside()

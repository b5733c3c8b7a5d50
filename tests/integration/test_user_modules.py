"""Modules of users on real clusters: all modules that a task needs are shipped, in their current version."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import TaskHandle, TaskSubmissionError, UnifiedScheduler, get
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.packages import runtime_env_upload
from tests.unit.client_api.users_project import running_in, write

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]

SHAPES = """
UNIT = 10
class Shape:
    def __init__(self, a): self.a = a
    def area(self): return self.a ** 2
"""
LOOK = """
def look():
    import os, lib_m
    files = os.listdir(os.path.dirname(lib_m.__file__))
    return lib_m.NAME, sorted(os.listdir(".")), sorted(f for f in files if f[0] not in "_.")
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The folder of a user's program."""
    with running_in(tmp_path):
        yield tmp_path


@pytest.fixture
def uploads(scheduler: UnifiedScheduler, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each package went to each cluster. The agents, with a package of their own, are started before."""
    get([scheduler.submit_task_async(abs, (1,), preferred_cluster=name, fallback="wait") for name in ("linux", "mac")])
    counted: Counter[str] = Counter()
    real = DashboardClient.upload_package

    async def counting(self: DashboardClient, uri: str, source: Path | bytes) -> None:
        await real(self, uri, source)
        counted[f"{self.name} {uri}"] += 1

    monkeypatch.setattr(DashboardClient, "upload_package", counting)
    return counted


def test_imports_of_shipped_modules_are_shipped(scheduler: UnifiedScheduler, project: Path) -> None:
    files = {
        "first_m.py": "import second_m\ndef f(x):\n from third_m.sub import plus\n return plus(second_m.ten(x))\n",
        "second_m.py": "def ten(x):\n    return 10 * x\n",
        "third_m/__init__.py": "",
        "third_m/sub.py": "from . import base\ndef plus(x):\n import fourth_m\n return x + base.ONE + fourth_m.TWO\n",
        "third_m/base.py": "ONE = 1\n",
        "fourth_m.py": "TWO = 2\n",
    }
    write(project, files)
    assert scheduler.submit_task(importlib.import_module("first_m").f, (4,)) == 43


def test_functions_of_a_notebook_with_imports_inside(scheduler: UnifiedScheduler, project: Path) -> None:
    write(project, {"mine_m.py": "X = 1\n", "pack_m/sub.py": "Y = 2\n", "named_m.py": "Z = 3\n"})
    # What a notebook runs belongs to no file and no module that could be imported.
    cell = """
import functools, importlib

def decorated(f):
    @functools.wraps(f)
    def wrapper(*args):
        import mine_m
        return f(*args) + mine_m.X
    return wrapper

class Model:
    def __init__(self, factor): self.factor = factor
    def apply(self, x):
        from pack_m.sub import Y
        return self.factor * x * Y

@decorated
def run(model, x):
    return model.apply(x) + importlib.import_module("named_m").Z
"""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(cell, space)
    assert scheduler.submit_task(space["run"], (space["Model"](5), 7)) == 5 * 7 * 2 + 3 + 1
    assert scheduler.submit_task(space["Model"](2).apply, (3,)) == 12
    assert scheduler.submit_task(functools.partial(space["run"], space["Model"](1)), (1,)) == 6
    assert not {"mine_m", "pack_m", "named_m"} & sys.modules.keys(), "nothing had to be imported here"


def test_modules_of_arguments_and_closures(scheduler: UnifiedScheduler, project: Path) -> None:
    write(
        project,
        {
            "shapes_m/__init__.py": "",
            "shapes_m/flat.py": SHAPES,
            "tools_m.py": "def double(x): return 2 * x\n",
        },
    )
    shapes, tools = importlib.import_module("shapes_m.flat"), importlib.import_module("tools_m")
    assert scheduler.submit_task(lambda s: tools.double(s.area()), (shapes.Shape(3),)) == 18
    assert scheduler.submit_task(shapes.Shape(4).area) == 16
    assert isinstance(scheduler.submit_task(lambda kind: kind(1), (shapes.Shape,)), shapes.Shape)


def test_a_module_named_like_one_that_the_cluster_has(scheduler: UnifiedScheduler, project: Path) -> None:
    write(project, {"distlib.py": "def f(): return 'mine'\n", "tests_m/__init__.py": "def f(): return 'tests'\n"})
    assert scheduler.submit_task(importlib.import_module("distlib").f) == "mine"
    assert scheduler.submit_task(importlib.import_module("tests_m").f) == "tests"


def test_changed_content_is_used_at_once_and_equal_content_uploaded_once(
    scheduler: UnifiedScheduler, project: Path, uploads: Counter[str]
) -> None:
    write(project, {"edited_m/__init__.py": "", "edited_m/work.py": f"# {project}\ndef f(): return 1\n"})
    work = importlib.import_module("edited_m.work")

    def burst() -> set[int]:
        return set(get([scheduler.submit_task_async(work.f, preferred_cluster=name) for name in ("linux", "mac") * 10]))

    assert burst() == {1}
    assert burst() == {1}
    assert sorted(uploads.values()) == [1, 1], "one package, two clusters"
    write(project, {"edited_m/work.py": f"# {project}\ndef f(): return 22\n"})
    importlib.reload(work)
    assert burst() == {22}
    assert sorted(uploads.values()) == [1, 1, 1, 1]
    write(project, {"edited_m/work.py": f"# {project}\ndef f(): return 1\n"})
    importlib.reload(work)
    assert burst() == {1}
    assert sorted(uploads.values()) == [1, 1, 1, 1], "the clusters still have the first one"


def test_a_dropped_package_is_uploaded_again(
    scheduler: UnifiedScheduler, project: Path, uploads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_env_upload, "SEEN_TTL_S", 0.0)
    write(project, {"dropped_m.py": f"# {project}\ndef f(): return 'there'\n"})
    f = importlib.import_module("dropped_m").f
    here: dict[str, Any] = {"preferred_cluster": "mac", "fallback": "wait"}

    def drop(uri: str) -> bool:
        from ray.experimental import internal_kv

        internal_kv._internal_kv_del(uri)
        return internal_kv._internal_kv_exists(uri)

    assert scheduler.submit_task(f, **here) == "there"
    [(name, count)] = uploads.items()
    assert count == 1
    assert scheduler.submit_task(drop, (name.removeprefix("mac "),), **here) is False
    assert scheduler.submit_task(f, **here) == "there"
    assert uploads == {name: 2}


def test_shipped_modules_of_the_caller_and_the_function(scheduler: UnifiedScheduler, project: Path) -> None:
    write(
        project,
        {
            "work/data.txt": "data",
            "work/skipped.log": "",
            "work/.gitignore": "*.log\n!kept.log\n",
            "work/kept.log": "",
            "work/venv/pyvenv.cfg": "",
            "work/in_work_m.py": "def where(): return __file__\n",
            "lib_m/__init__.py": "NAME = 'lib'\n",
            "lib_m/.gitignore": "secret*\n",
            "lib_m/secret.txt": "",
            "lib_m/notes.md": "",
            "func_m/__init__.py": LOOK,
        },
    )
    env = {"working_dir": str(project / "work"), "py_modules": [str(project / "lib_m")], "excludes": ["*.md"]}
    name, there, files = scheduler.submit_task(importlib.import_module("func_m").look, runtime_env=env)
    assert name == "lib"
    assert [file for file in there if file[0] != "_"] == [".gitignore", "data.txt", "in_work_m.py", "kept.log"]
    assert files == []
    sys.path.insert(0, str(project / "work"))
    place = scheduler.submit_task(
        importlib.import_module("in_work_m").where, runtime_env={"working_dir": env["working_dir"]}
    )
    assert "working_dir_files" in place, "it is found in the working_dir and not shipped beside it"


PROGRAM = """
import functools
from . import base
from .shapes import Shape
from ray_multicluster_scheduler import initialize_scheduler_environment, submit_task

def area(shape):
    from .shapes import UNIT
    from pkg_m import base as again
    return shape.area() * UNIT * base.ONE * again.ONE

class Local:
    def call(self, x):
        from .base import ONE
        return x + ONE

if __name__ == "__main__":
    initialize_scheduler_environment()
    print(submit_task(area, (Shape(3),)), submit_task(Local().call, (1,)), submit_task(lambda: Local().call(2)))
"""


def test_a_package_run_as_a_program_twice(config_path: Path, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pkg_m/__init__.py": "",
            "pkg_m/base.py": "ONE = 1\n",
            "pkg_m/shapes.py": SHAPES,
            "pkg_m/main.py": PROGRAM,
        },
    )
    assert _run(tmp_path, config_path, "-m", "pkg_m.main") == "90 2 3"
    write(tmp_path, {"pkg_m/base.py": "ONE = 2\n"})
    assert _run(tmp_path, config_path, "-m", "pkg_m.main") == "360 3 4"


def _run(folder: Path, config: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "RMCS_CONFIG": str(config), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_package_lost_in_transit_is_sent_again(
    scheduler: UnifiedScheduler, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"lost_m.py": f"# {project}\ndef f(): return 'there'\n"})
    sent: list[str] = []
    real = DashboardClient.upload_package

    async def forgetful(self: DashboardClient, uri: str, source: Path | bytes) -> None:
        sent.append(uri)
        if len(sent) > 1:
            await real(self, uri, source)

    monkeypatch.setattr(DashboardClient, "upload_package", forgetful)
    f = importlib.import_module("lost_m").f
    handle = scheduler.submit_task_async(f, preferred_cluster="mac", fallback="wait")
    assert handle.result(timeout=60) == "there"
    assert handle.attempt == 2
    assert sent[1] == sent[0].replace(".zip", "-2.zip"), "Ray would not try the old name again"


NEEDS_LIBS = """import os
if not os.path.isdir(__file__.replace("wrapt/__init__.py", "wrapt.libs")):
    raise ImportError("Importing the C-extensions failed.")
"""


def test_a_package_that_pip_installed_next_to_the_program(
    scheduler: UnifiedScheduler, project: Path, ray_python: Path
) -> None:
    """As by `pip install --target`: its libraries are beside it, and the clusters have a copy of their own."""
    [installed] = (ray_python.parents[1] / "lib").glob("python*/site-packages/wrapt")
    shutil.copytree(installed, project / "wrapt")  # with its extension module
    shutil.copytree(next(installed.parent.glob("wrapt-*.dist-info")), project / "wrapt-9.dist-info")
    broken = NEEDS_LIBS + (installed / "__init__.py").read_text()
    user = "import wrapt\ndef where(): return wrapt.__file__\n"
    write(project, {"wrapt/__init__.py": broken, "wrapt.libs/lib.so": "", "uses_m.py": user})
    here = importlib.import_module("wrapt")
    assert here.__file__ == str(project / "wrapt" / "__init__.py")
    assert scheduler.submit_task(lambda: here.__file__) == str(installed / "__init__.py")
    assert scheduler.submit_task(importlib.import_module("uses_m").where) == str(installed / "__init__.py")


def begun(handle: TaskHandle) -> int:
    """How often the task was started; an attempt that waited for its agent may have been recalled."""
    return [step["code"] for step in handle.explain()["history"]].count("STARTED")


def test_a_failed_import_names_the_copy_and_is_not_retried(scheduler: UnifiedScheduler, project: Path) -> None:
    write(
        project,
        {
            "wrapt.py": "import os\nif 'py_modules_files' in __file__:\n    raise ImportError('broken')\n",
            "uses_m.py": "import wrapt\ndef f(): return 1\n",
        },
    )

    def inside() -> None:
        import wrapt  # noqa: F401

    class Inside:
        def __init__(self) -> None:
            inside()

    def gone() -> None:
        from colorful import gone  # noqa: F401

    handle = scheduler.submit_task_async(inside, retries=3)
    error = handle.exception(timeout=60)
    assert isinstance(error, ImportError)
    assert begun(handle) == 1
    [note] = [note for note in error.__notes__ if "wrapt" in note]
    assert "py_modules_files" in note
    assert "site-packages/wrapt/__init__.py" in note, "the cluster's own copy, which it hides"
    assert note in handle.explain()["sentence"]

    handle = scheduler.submit_task_async(importlib.import_module("uses_m").f, retries=3)
    with pytest.raises(TaskSubmissionError, match="py_modules_files"):
        handle.result(timeout=60)
    assert begun(handle) == 1

    with pytest.raises(ImportError) as caught:
        scheduler.submit_actor(Inside)
    assert any("py_modules_files" in note for note in caught.value.__notes__)

    with pytest.raises(ImportError) as caught:
        scheduler.submit_task(gone)
    assert any("site-packages/colorful" in note and "not shipped" in note for note in caught.value.__notes__)


def test_a_module_name_computed_at_run_time_must_be_declared(scheduler: UnifiedScheduler, project: Path) -> None:
    write(project, {"plugins_m/red.py": "NAME = 'red'\n"})

    def load(folder: str, name: str) -> str:
        found = importlib.import_module(f"{folder}.{name}").NAME
        return str(found)

    with pytest.raises(ModuleNotFoundError, match="plugins_m") as caught:
        scheduler.submit_task(load, ("plugins_m", "red"))
    assert any("py_modules" in note and "'plugins_m'" in note for note in caught.value.__notes__)
    env = {"py_modules": [str(project / "plugins_m")]}
    assert scheduler.submit_task(load, ("plugins_m", "red"), runtime_env=env) == "red"

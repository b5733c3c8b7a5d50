"""Which modules are the user's own, and what of them is shipped."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.submission import Submission
from ray_multicluster_scheduler.app.client_api.user_modules import modules_to_ship
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_shelf import PayloadShelf
from tests.support.links import FakeClock


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's project: a module, a package, and a package without __init__."""
    (tmp_path / "lone_module_x.py").write_text("def f(): return 1\nclass C: pass\n")
    (tmp_path / "package_x" / "deep").mkdir(parents=True)
    (tmp_path / "package_x" / "__init__.py").write_text("")
    (tmp_path / "package_x" / "deep" / "__init__.py").write_text("")
    (tmp_path / "package_x" / "deep" / "code.py").write_text("def g(): return 2\n")
    (tmp_path / "namespace_x").mkdir()
    (tmp_path / "namespace_x" / "part.py").write_text("def h(): return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("lone_module_x", "package_x.deep.code", "namespace_x.part")
    for name in names:
        importlib.import_module(name)
    yield tmp_path
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("lone_module_x", "package_x", "namespace_x")
    ]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "shipped"),
    [
        ("lone_module_x", "lone_module_x.py"),
        ("package_x.deep.code", "package_x"),
        ("package_x", "package_x"),
        ("namespace_x.part", "namespace_x"),
    ],
)
def test_the_top_level_of_a_users_module_is_shipped(project: Path, module: str, shipped: str) -> None:
    assert modules_to_ship([module]) == [project / shipped]


@pytest.mark.parametrize(
    "module",
    [
        "__main__",
        "json",
        "os.path",
        "builtins",
        "pytest",
        "cloudpickle.cloudpickle",
        "ray_multicluster_scheduler.common.clock",
        "never_imported_x",
        "",
    ],
)
def test_what_every_cluster_has_or_nobody_can_ship_is_not(module: str) -> None:
    assert modules_to_ship([module]) == []


def test_each_place_is_named_once_and_said_once(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ray_multicluster_scheduler"):
        assert modules_to_ship(["package_x.deep", "package_x.deep.code"]) == [project / "package_x"]
        modules_to_ship(["package_x"])
    assert caplog.text.count(f"{project / 'package_x'} is shipped") == 1


def submission() -> Submission:
    return Submission(Settings(), PayloadShelf(), FakeClock(), "cp1", [])


def test_a_task_takes_the_modules_of_its_function_and_arguments_along(project: Path) -> None:
    lone, part = sys.modules["lone_module_x"], sys.modules["namespace_x.part"]
    task = submission().task(part.h, (lone.C(),))
    assert task.runtime_env == {"py_modules": [str(project / "lone_module_x.py"), str(project / "namespace_x")]}


def test_a_caller_who_says_what_to_ship_is_taken_at_his_word(project: Path) -> None:
    lone = sys.modules["lone_module_x"]
    task = submission().task(lone.f, runtime_env={"py_modules": [str(project)], "pip": ["x"]})
    assert task.runtime_env == {"py_modules": [str(project)], "pip": ["x"]}
    assert "py_modules" not in submission().task(lone.f, runtime_env={"working_dir": str(project)}).runtime_env
    assert "py_modules" in submission().task(lone.f, runtime_env={"pip": ["x"]}).runtime_env

"""A failed import in a worker names the copy of the module that was loaded, and whether it was shipped."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.executor.chunk_call import run_rows
from ray_multicluster_scheduler.common.import_errors import explain_import
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.user_code import not_loadable, user_error
from tests.unit.client_api.users_project import running_in, write


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    with running_in(tmp_path):
        yield tmp_path


def place(root: Path, folder: str, files: dict[str, str]) -> Path:
    """Modules in a folder that imports find first; ``folder`` as in Ray's ``runtime_resources``."""
    write(root / folder, files)
    sys.path.insert(0, str(root / folder))
    return root / folder


def explained(module: str, name: str = "") -> str:
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {name}" if name else f"import {module}", {"__name__": "__main__"})
    return explain_import(caught.value)


SHIPPED = "ray/session_1/runtime_resources/py_modules_files/_ray_pkg_1"


def test_a_shipped_copy_hides_the_clusters_own(project: Path) -> None:
    own = place(project, "site", {"wrap_x/__init__.py": ""})
    shipped = place(
        project, SHIPPED, {"wrap_x/__init__.py": "from . import core", "wrap_x/core.py": "raise ImportError"}
    )
    text = explained("wrap_x")
    assert f"'wrap_x' was loaded from {shipped}/wrap_x/core.py" in text
    assert "py_modules" in text
    assert str(own / "wrap_x" / "__init__.py") in text


def test_a_shipped_copy_without_another(project: Path) -> None:
    place(project, SHIPPED.replace("py_modules_files", "working_dir_files"), {"alone_x.py": "raise ImportError('x')"})
    text = explained("alone_x")
    assert "working_dir of its runtime_env" in text
    assert "hides" not in text


def test_a_name_that_the_clusters_own_copy_lacks(project: Path) -> None:
    own = place(project, "site", {"lib_x.py": ""})
    text = explained("lib_x", "gone")
    assert f"{own}/lib_x.py" in text
    assert "not shipped" in text


def test_a_copy_that_was_installed_for_the_item(project: Path) -> None:
    folder = place(project, SHIPPED.replace("py_modules_files", "pip"), {"lib_x.py": ""})
    text = explained("lib_x", "gone")
    assert f"{folder}/lib_x.py" in text
    assert "'pip' of the runtime_env" in text


def test_an_extension_module_that_does_not_load(project: Path) -> None:
    """A package such as numpy raises its own error; the cause names the file."""
    code = "try:\n    from . import _fast\nexcept ImportError as error:\n    raise ImportError('failed') from error\n"
    folder = place(project, SHIPPED, {"fast_x/__init__.py": code, "fast_x/_fast.abi3.so": "not a library"})
    assert f"'fast_x' was loaded from {folder}/fast_x/_fast.abi3.so" in explained("fast_x")


def test_a_submodule_that_was_left_out(project: Path) -> None:
    folder = place(project, SHIPPED, {"part_x/__init__.py": "", "space_x/deep/one.py": ""})
    text = explained("part_x._fast")
    assert f"{folder}/part_x/__init__.py" in text
    assert "'part_x._fast' is not in this copy" in text
    assert f"{folder}/space_x" in explained("space_x.other")


def test_a_module_that_is_nowhere(project: Path) -> None:
    write(project, {"user_x.py": "import nowhere_x.sub"})
    for name in ("nowhere_x", "user_x"):
        text = explained(name)
        assert "cannot be found" in text
        assert "py_modules" in text
        assert "'nowhere_x'" in text


def test_a_function_of_a_loaded_module_raises(project: Path) -> None:
    own = place(project, "site", {"lazy_x.py": "def need(): raise ImportError('install more')\n"})
    module = importlib.import_module("lazy_x")
    with pytest.raises(ImportError) as caught:
        module.need()
    assert f"{own}/lazy_x.py" in explain_import(caught.value)


def test_error_without_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "odd_x", None)
    error = ImportError("raised by hand")
    error.__cause__, error.__context__ = ValueError(), error
    assert explain_import(error) == ""
    assert explain_import(ValueError()) == ""
    assert explain_import(ModuleNotFoundError("raised by hand")) == ""
    assert "cannot be found" in explain_import(ModuleNotFoundError("halted", name="odd_x"))


def test_results_have_the_explanation(project: Path) -> None:
    folder = place(project, SHIPPED, {"bad_x.py": "raise ImportError('bad')"})
    with pytest.raises(ImportError) as caught:
        importlib.import_module("bad_x")
    head = not_loadable(caught.value)
    assert (head["failure"], head["code"]) == ("permanent", "NOT_LOADABLE")
    assert str(folder) in head["message"]
    head, _ = user_error(caught.value)
    assert head["failure"] == "user"
    assert str(folder) in head["message"]
    assert any(str(folder) in note for note in caught.value.__notes__)
    assert any(
        str(folder) in failure.message for failure in run_rows(importlib.import_module, False, ["bad_x"]).failures
    )
    assert not_loadable(ModuleNotFoundError("no", name="nowhere_x"))["code"] == "MODULE_NOT_FOUND"

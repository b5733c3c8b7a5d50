"""Where a module comes from decides whether it is the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.modules.user_module_paths import user_module_paths
from tests.unit.client_api.users_project import running_in, write


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Iterator[Path]:
    with running_in(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("loaded", [True, False], ids=["imported", "only there"])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("lone_x", "lone_x.py"),
        ("package_x", "package_x"),
        ("namespace_x", "namespace_x"),
        ("tests_x", "tests_x"),
        ("ray_multicluster_scheduler_x", "ray_multicluster_scheduler_x.py"),
        ("sourceless_x", "sourceless_x.pyc"),
    ],
)
def test_a_users_own(project: Path, name: str, place: str, loaded: bool) -> None:
    write(
        project,
        {
            "lone_x.py": "",
            "package_x/__init__.py": "",
            "namespace_x/part.py": "",
            "tests_x/__init__.py": "",
            "ray_multicluster_scheduler_x.py": "",
        },
    )
    _compile(project / "lone_x.py", project / "sourceless_x.pyc")
    if loaded:
        importlib.import_module(name)
    assert user_module_paths(name) == (project / place,)
    assert loaded == (name in sys.modules)


def _compile(source: Path, target: Path) -> None:
    import py_compile

    py_compile.compile(str(source), cfile=str(target))
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    "module",
    ["__main__", "json", "os", "builtins", "pytest", "cloudpickle", "ray_multicluster_scheduler", "never_x", "", "ray"],
)
def test_what_every_cluster_has_or_nobody_can_ship(module: str) -> None:
    assert user_module_paths(module) == ()


@pytest.mark.parametrize("folder", ["venv/lib/python3.11/site-packages", "usr/lib/python3/dist-packages"])
def test_installed_packages_are_never_shipped(project: Path, folder: str) -> None:
    write(project / folder, {"lib_x/__init__.py": "", "six_x.py": "", "space_x/part/__init__.py": ""})
    write(project / "cache", {"linked_x.py": ""})
    (project / folder / "linked_x.py").symlink_to(project / "cache" / "linked_x.py")  # as some installers do
    sys.path.insert(0, str(project / folder))
    for name in ("lib_x", "six_x", "space_x", "linked_x"):
        assert user_module_paths(name) == ()
        importlib.import_module(name)
        assert user_module_paths(name) == ()


RECORD = """numpy_x/__init__.py,sha256=x,1
numpy_x.libs/libopenblas.so,sha256=x,1
"oddly, named_x.py",sha256=x,1
six_x.py,sha256=x,1
_fast_x.abi3.so,sha256=x,1
../../bin/tool_x,sha256=x,1
numpy_x-2.1.dist-info/RECORD,,
"""


@pytest.mark.parametrize("loaded", [True, False], ids=["imported", "only there"])
def test_what_pip_installed_into_a_folder_of_its_own_is_never_shipped(project: Path, loaded: bool) -> None:
    """As by `pip install --target`, also into the folder that has the user's own modules."""
    write(
        project,
        {
            "numpy_x/__init__.py": "",
            "numpy_x.libs/libopenblas.so": "",
            "six_x.py": "",
            "_fast_x.abi3.so": "",
            "numpy_x-2.1.dist-info/RECORD": RECORD,
            "tops_x/__init__.py": "",
            "Tops_X-1.dist-info/top_level.txt": "tops_x\n",
            "bare_x/__init__.py": "",
            "Bare.X-1.dist-info/METADATA": "",
            "vendor_x/__init__.py": "",
            "vendor_x.libs/libfast.so": "",
            "mine_x/__init__.py": "",
            "own_x.py": "",
        },
    )
    (project / "linked_x").symlink_to(project / "numpy_x")
    for name in ("numpy_x", "six_x", "_fast_x", "tops_x", "bare_x", "vendor_x"):
        if loaded and name != "_fast_x":
            importlib.import_module(name)
        assert user_module_paths(name) == (), name
    assert user_module_paths("linked_x") == ()
    assert user_module_paths("mine_x") == (project / "mine_x",)
    assert user_module_paths("own_x") == (project / "own_x.py",)


def test_a_package_installed_while_the_program_runs(project: Path) -> None:
    write(project, {"first_x.py": "", "first_x-1.dist-info/RECORD": "first_x.py,,"})
    assert user_module_paths("first_x") == ()
    write(project, {"second_x.py": "", "second_x-1.dist-info/RECORD": "second_x.py,,"})
    assert user_module_paths("second_x") == ()


def test_an_editable_install_is_the_users_own(project: Path) -> None:
    write(project / "checkout" / "src", {"edit_x/__init__.py": "", "linked_x/__init__.py": ""})
    packages = project / "venv" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "linked_x").symlink_to(project / "checkout" / "src" / "linked_x")
    sys.path.insert(0, str(packages))
    sys.path.append(str(project / "checkout" / "src"))  # what a .pth file does
    write(project / "checkout" / "src", {"edit_x.egg-info/top_level.txt": "edit_x"})  # as setuptools leaves behind
    assert user_module_paths("edit_x") == (project / "checkout" / "src" / "edit_x",)
    assert user_module_paths("linked_x") == (packages / "linked_x",)


def test_an_import_hook_is_asked(project: Path) -> None:
    write(project / "elsewhere", {"hooked_x/__init__.py": ""})
    init = project / "elsewhere" / "hooked_x" / "__init__.py"

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> object:
            if name == "angry_x":
                raise RuntimeError("not today")
            if name != "hooked_x":
                return None
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]  # a class with the one method is enough
    try:
        assert user_module_paths("hooked_x") == (init.parent,)
        assert user_module_paths("angry_x") == ()
    finally:
        sys.meta_path.remove(Finder)  # type: ignore[arg-type]  # as above


def test_a_package_under_a_linked_name_keeps_that_name(project: Path) -> None:
    write(project, {"versions/v2/__init__.py": ""})
    (project / "current_x").symlink_to(project / "versions" / "v2")
    assert user_module_paths("current_x") == (project / "current_x",)


def test_a_namespace_package_over_several_folders(project: Path) -> None:
    write(project, {"one/firm_x/a.py": "", "two/firm_x/b.py": "", "venv/site-packages/firm_x/c.py": ""})
    sys.path[:0] = [str(project / folder) for folder in ("one", "two", "venv/site-packages")]
    assert user_module_paths("firm_x") == (project / "one" / "firm_x", project / "two" / "firm_x")


def test_a_search_path_that_names_a_folder_twice(project: Path) -> None:
    write(project, {"twice_x/a.py": ""})
    sys.path.append(f"{project}/.")
    importlib.import_module("twice_x.a")
    assert user_module_paths("twice_x") == (project / "twice_x",)


def test_unshippable_module_is_reported_once(
    project: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"plug-in.py": ""})
    spec = importlib.util.spec_from_file_location("plugin_x", project / "plug-in.py")
    assert spec is not None
    monkeypatch.setitem(sys.modules, "plugin_x", importlib.util.module_from_spec(spec))
    with zipfile.ZipFile(project / "app.zip", "w") as archive:
        archive.writestr("zipped_x.py", "")
    sys.path.insert(0, str(project / "app.zip"))
    for name, source in {"plugin_x": "plug-in.py", "zipped_x": "app.zip"}.items():
        assert user_module_paths(name) == user_module_paths(name) == ()
        assert caplog.text.count(f"the user's module {name} comes from {project / source}") == 1


def test_unusual_objects_among_the_loaded_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    odd: dict[str, object] = {"none_x": None, "number_x": 3, "made_x": types.ModuleType("made_x")}
    strange = odd["strange_x"] = types.ModuleType("strange_x")
    monkeypatch.setattr(strange, "__path__", 7, raising=False)
    for name, module in odd.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]  # that is what is odd about it
        assert user_module_paths(name) == ()

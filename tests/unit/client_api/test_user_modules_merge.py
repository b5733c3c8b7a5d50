"""The user's modules are added to what the caller ships himself, but never twice and never in front of it."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.modules.user_modules import with_users_modules
from tests.unit.client_api.users_project import running_in, write


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    files = {
        "work/a_x/__init__.py": "",
        "work/b_x.py": "",
        "work/src/c_x/__init__.py": "",
        "other/a_x/__init__.py": "",
        "other/lib_x/__init__.py": "",
        "other/a_x.txt": "",
        "other/a_x-1.0-py3-none-any.whl": "",
        "one/space_x/p.py": "",
        "two/space_x/q.py": "",
    }
    with running_in(tmp_path):
        write(tmp_path, files)
        sys.path[:0] = [str(tmp_path / name) for name in ("work", "work/src", "one", "two")]
        yield tmp_path


def added(project: Path, env: dict[str, object], *modules: str) -> list[str]:
    """What is in py_modules afterwards, by its path in the project."""
    before = dict(env)
    after = with_users_modules(env, modules)
    assert env == before, "the caller's own dict is left alone"
    assert {**after, "py_modules": None} == {**before, "py_modules": None}
    return [place.removeprefix(f"{project}/") for place in after.get("py_modules", [])]


def test_nothing_given(project: Path) -> None:
    assert added(project, {}, "a_x.deep", "b_x", "json") == ["work/a_x", "work/b_x.py"]
    assert added(project, {"pip": ["x"]}, "a_x") == ["work/a_x"]
    assert with_users_modules({"pip": ["x"]}, ["json"]) == {"pip": ["x"]}
    assert with_users_modules({}, []) == {}


def test_an_empty_list_is_an_answer(project: Path) -> None:
    assert with_users_modules({"py_modules": []}, ["a_x"]) == {"py_modules": []}


def test_a_working_dir_that_holds_them(project: Path) -> None:
    work = str(project / "work")
    assert added(project, {"working_dir": work}, "a_x", "b_x") == []
    assert added(project, {"working_dir": f"{work}/."}, "a_x") == []
    # Below it is not enough: only what is at its top can be imported from there.
    assert added(project, {"working_dir": work}, "c_x") == ["work/src/c_x"]
    assert added(project, {"working_dir": str(project)}, "a_x") == ["work/a_x"]


def test_a_working_dir_with_one_of_the_same_name(project: Path) -> None:
    assert added(project, {"working_dir": str(project / "other")}, "a_x", "b_x") == ["work/b_x.py"]


def test_a_working_dir_that_is_an_archive(project: Path) -> None:
    with zipfile.ZipFile(project / "w.zip", "w") as archive:
        archive.writestr("a_x/__init__.py", "")
    assert added(project, {"working_dir": str(project / "w.zip")}, "a_x", "b_x") == ["work/b_x.py"]
    (project / "bad.zip").write_text("no archive")
    assert added(project, {"working_dir": str(project / "bad.zip")}, "a_x") == []


def test_a_working_dir_elsewhere_is_not_hidden(project: Path) -> None:
    assert added(project, {"working_dir": "s3://bucket/w.zip"}, "a_x") == []


@pytest.mark.parametrize(
    ("given", "also"),
    [
        ("work/a_x", []),
        ("work/a_x/", []),
        ("other/a_x", []),
        ("other/lib_x", ["work/a_x"]),
        ("other", ["work/a_x"]),
        ("work", ["work/a_x"]),
        ("other/a_x-1.0-py3-none-any.whl", ["work/a_x"]),
    ],
)
def test_py_modules_come_first_and_win(project: Path, given: str, also: list[str]) -> None:
    assert added(project, {"py_modules": [f"{project}/{given}"]}, "a_x") == [given, *also]


def test_py_modules_from_elsewhere_are_found_first(project: Path) -> None:
    assert added(project, {"py_modules": ["s3://bucket/a_x.zip"]}, "a_x") == ["s3://bucket/a_x.zip", "work/a_x"]


def test_the_parts_of_a_namespace_add_up(project: Path) -> None:
    assert added(project, {"py_modules": [f"{project}/one/space_x"]}, "space_x.p") == ["one/space_x", "two/space_x"]

"""Packages: equal content gives an equal name; ignore files and excludes are obeyed."""

from __future__ import annotations

import importlib.machinery
import os
import zipfile
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.packages.packaging import (
    Package,
    PackageKind,
    plan_package,
    write_package,
)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def pack(path: Path, tmp_path: Path, kind: PackageKind = "working_dir", excludes: list[str] | None = None) -> Package:
    folder = tmp_path / "packages"
    folder.mkdir(exist_ok=True)
    return write_package(plan_package(path, kind, excludes or []), folder)


def names(package: Package) -> list[str]:
    with zipfile.ZipFile(package.path) as archive:
        return archive.namelist()


def test_equal_content_gives_an_equal_name(tmp_path: Path) -> None:
    files = {"b.py": "2", "a.py": "1", "sub/c.py": "3"}
    one = tree(tmp_path / "one", files)
    two = tree(tmp_path / "two", dict(reversed(files.items())))
    os.utime(two / "a.py", (1, 1))
    first = pack(one, tmp_path)
    content = first.path.read_bytes()
    second = pack(two, tmp_path)
    assert first.uri == second.uri
    assert second.path.read_bytes() == content
    assert first.uri == f"gcs://{first.path.name}"
    assert first.path.name.startswith("_ray_pkg_")
    assert names(first) == ["a.py", "b.py", "sub/c.py"]


@pytest.mark.parametrize("change", ["content", "name", "mode", "empty folder"])
def test_any_difference_gives_another_name(change: str, tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {"a.py": "1"})
    before = pack(root, tmp_path).uri
    if change == "content":
        (root / "a.py").write_text("2")
    elif change == "name":
        (root / "a.py").rename(root / "b.py")
    elif change == "mode":
        (root / "a.py").chmod(0o755)
    else:
        (root / "logs").mkdir()
    assert pack(root, tmp_path).uri != before


def test_unpacked_it_is_the_same_again(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {"a.txt": "größe\n", "run.sh": "#!/bin/sh\n"})
    (root / "run.sh").chmod(0o700)
    (root / "empty").mkdir()
    with zipfile.ZipFile(pack(root, tmp_path).path) as archive:
        assert archive.testzip() is None
        assert archive.read("a.txt") == "größe\n".encode()
        assert archive.getinfo("run.sh").external_attr >> 16 == 0o100755
        assert archive.getinfo("a.txt").external_attr >> 16 == 0o100644
        assert archive.getinfo("empty/").is_dir()


def test_excludes_and_gitignore(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "w",
        {
            ".gitignore": "*.log\n/build/\n!keep.log\n",
            "a.py": "",
            "x.log": "",
            "keep.log": "",
            "build/out": "",
            "sub/build/out": "",
            "sub/.gitignore": "!x.log\nsecret\n",
            "sub/x.log": "",
            "sub/secret": "",
            "data/big.pkl": "",
            "models/m.bin": "",
            ".git/config": "",
            "sub/__pycache__/a.pyc": "",
        },
    )
    package = pack(root, tmp_path, excludes=["*.pkl", "models/"])
    assert names(package) == [
        ".gitignore",
        "a.py",
        "data/",
        "keep.log",
        "sub/.gitignore",
        "sub/build/out",
        "sub/x.log",
    ]


def test_excludes_are_not_undone_by_a_gitignore(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {".gitignore": "!a.pkl\n", "a.pkl": "", "b": ""})
    assert names(pack(root, tmp_path, excludes=["*.pkl"])) == [".gitignore", "b"]


def test_rayignore_is_read_like_gitignore(tmp_path: Path) -> None:
    files = {".rayignore": "*.csv\n", "a.csv": "", "sub/.rayignore": "x\n", "sub/x": "", "sub/y": "", "x": ""}
    root = tree(tmp_path / "w", files)
    assert names(pack(root, tmp_path)) == [".rayignore", "sub/.rayignore", "sub/y", "x"]


def test_gitignore_can_be_switched_off_as_with_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "w", {".gitignore": "*_pb2.py\n", "made_pb2.py": "", ".rayignore": "b\n", "b": ""})
    assert names(pack(root, tmp_path)) == [".gitignore", ".rayignore"]
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    assert names(pack(root, tmp_path)) == [".gitignore", ".rayignore", "made_pb2.py"]


def test_environments_are_no_part_of_a_working_dir(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {".venv/x": "", "venv/x": "", "sub/venv/x": "", "a": ""})
    assert names(pack(root, tmp_path)) == ["a", "sub/"]
    assert names(pack(root, tmp_path, excludes=["!venv"])) == ["a", "sub/venv/x", "venv/x"]
    assert names(pack(root, tmp_path, "py_module")) == ["w/.venv/x", "w/a", "w/sub/venv/x", "w/venv/x"]


def test_ignore_files_and_excludes_of_a_module(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        ".gitignore": "*.so\n/data/\n!keep.so\n",
        "a.so": "",
        "keep.so": "",
        "data/x": "",
        "sub/data/x": "",
        "sub/.gitignore": "!a.so\n",
        "sub/a.so": "",
        "sub/b.so": "",
        "big.bin": "",
    }
    root = tree(tmp_path / "lib", files)
    package = pack(root, tmp_path, "py_module", excludes=["/big.bin"])
    kept = [".gitignore", "__init__.py", "keep.so", "sub/.gitignore", "sub/a.so", "sub/data/x"]
    assert names(package) == [f"lib/{name}" for name in kept]


def test_a_module_under_a_linked_name_keeps_that_name(tmp_path: Path) -> None:
    tree(tmp_path / "versions" / "v2", {"__init__.py": "", "x.py": ""})
    (tmp_path / "current").symlink_to(tmp_path / "versions" / "v2")
    assert names(pack(tmp_path / "current", tmp_path, "py_module")) == ["current/__init__.py", "current/x.py"]


@pytest.mark.parametrize("name", ["m.pyc", f"m{importlib.machinery.EXTENSION_SUFFIXES[0]}"])
def test_a_module_without_source(name: str, tmp_path: Path) -> None:
    tree(tmp_path, {name: "x"})
    assert names(pack(tmp_path / name, tmp_path, "py_module")) == [name]


def test_links_stay_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree(tmp_path, {"outside/secret": "x", "w/real/a": "1", "w/b": "2"})
    root = tmp_path / "w"
    (root / "to_file").symlink_to("b")
    (root / "to_dir").symlink_to("real")
    (root / "to_itself").symlink_to(".")
    (root / "out_file").symlink_to(tmp_path / "outside" / "secret")
    (root / "out_dir").symlink_to(tmp_path / "outside")
    (root / "broken").symlink_to("nowhere")
    assert names(pack(root, tmp_path)) == ["b", "real/a", "to_dir/a", "to_file"]
    for name in ("out_file", "out_dir", "broken"):
        assert name in caplog.text


def test_pipes_are_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {"a": ""})
    os.mkfifo(root / "pipe")
    assert names(pack(root, tmp_path)) == ["a"]


def test_module_folder_keeps_its_name(tmp_path: Path) -> None:
    tree(tmp_path / "src" / "mylib", {"__init__.py": "", "sub/x.py": ""})
    package = pack(tmp_path / "src" / "mylib", tmp_path, "py_module")
    assert names(package) == ["mylib/__init__.py", "mylib/sub/x.py"]


def test_single_module_and_wheel(tmp_path: Path) -> None:
    tree(tmp_path, {"mod.py": "x = 1", "lib-1.0-py3-none-any.whl": "PK"})
    assert names(pack(tmp_path / "mod.py", tmp_path, "py_module")) == ["mod.py"]
    wheel = pack(tmp_path / "lib-1.0-py3-none-any.whl", tmp_path, "py_module")
    assert wheel.uri == "gcs://lib-1.0-py3-none-any.whl"
    assert wheel.path == tmp_path / "lib-1.0-py3-none-any.whl"


def test_zip_as_working_dir_is_taken_as_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "w.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", "1")
    package = pack(archive, tmp_path)
    assert package.path == archive
    assert package.uri.startswith("gcs://_ray_pkg_")


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("working_dir", "missing", "working_dir .*missing, which does not exist"),
        ("working_dir", "a.txt", r"working_dir .*a\.txt, which is of a kind"),
        ("py_module", "missing", "py_modules .*missing, which does not exist"),
        ("py_module", "a.txt", r"py_modules .*a\.txt, which is of a kind"),
    ],
)
def test_unusable_paths_are_named(kind: PackageKind, name: str, words: str, tmp_path: Path) -> None:
    tree(tmp_path, {"a.txt": ""})
    with pytest.raises(TaskSubmissionError, match=words) as caught:
        plan_package(tmp_path / name, kind)
    assert caught.value.next_step


def test_a_too_large_package_raises_and_leaves_no_file(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(300_000))
    folder = tmp_path / "packages"
    folder.mkdir()
    with pytest.raises(TaskSubmissionError, match="larger than") as caught:
        write_package(plan_package(root, "working_dir"), folder, max_bytes=200_000)
    assert "excludes" in (caught.value.next_step or "")
    assert list(folder.iterdir()) == []


def test_vanished_file_is_named(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {"a": "", "b": ""})
    plan = plan_package(root, "working_dir")
    (root / "b").unlink()
    with pytest.raises(TaskSubmissionError, match="w/b: No such file"):
        write_package(plan, tmp_path)


def test_fingerprint_changes_only_when_something_was_touched(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {"a": "1"})
    before = plan_package(root, "working_dir").fingerprint()
    assert plan_package(root, "working_dir").fingerprint() == before
    (root / "a").write_text("2")
    assert plan_package(root, "working_dir").fingerprint() != before


def test_a_bad_pattern_raises(tmp_path: Path) -> None:
    with pytest.raises(TaskSubmissionError, match="excludes holds a pattern"):
        plan_package(tree(tmp_path / "w", {"a": ""}), "working_dir", ["!"])

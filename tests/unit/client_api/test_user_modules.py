"""Which modules a task needs: the user's own, and what they import in turn."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.modules import source_imports, user_modules
from ray_multicluster_scheduler.app.client_api.modules.user_modules import modules_to_ship
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from tests.unit.client_api.users_project import running_in, write


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder that programs are run in."""
    with running_in(tmp_path):
        yield tmp_path


def shipped(*modules: str) -> set[str]:
    return {place.name for place in modules_to_ship(modules)}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import b_x", {"a_x.py", "b_x.py"}),
        ("from c_x.sub import f", {"a_x.py", "c_x", "d_x.py"}),
        ("def f():\n    import c_x", {"a_x.py", "c_x", "d_x.py"}),
        ("def f():\n    importlib.import_module('b_x')", {"a_x.py", "b_x.py"}),
        ("import json, pytest, never_heard_of_x, ray_multicluster_scheduler", {"a_x.py"}),
        ("import a_x, b_x", {"a_x.py", "b_x.py"}),
        ("if TYPE_CHECKING:\n    import b_x", {"a_x.py"}),
        ("import b_x\ndef f(:", {"a_x.py"}),
        ("from n_x import part", {"a_x.py", "n_x"}),
        ("import data_x", {"a_x.py"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_imports_of_shipped_modules_are_shipped(project: Path, source: str, found: set[str]) -> None:
    files = {
        "a_x.py": source,
        "b_x.py": "import a_x",
        "c_x/__init__.py": "from . import sub",
        "c_x/sub.py": "",
        "c_x/deep/er.py": "def g():\n    import d_x",
        "d_x.py": "",
        "n_x/part.py": "",
        "data_x/big.csv": "1,2",
    }
    write(project, files)
    assert shipped("a_x") == found
    assert not {"a_x", "b_x", "c_x", "d_x"} & sys.modules.keys(), "a look imports nothing"


def test_new_content_is_seen_at_once_after_a_reload(project: Path) -> None:
    write(project, {"a_x.py": "VERSION = 1", "b_x.py": "", "c_x.py": ""})
    a_x = importlib.import_module("a_x")
    assert shipped("a_x") == {"a_x.py"}
    for version, sibling in enumerate(("b_x", "c_x"), 2):
        write(project, {"a_x.py": f"import {sibling}\nVERSION = {version}"})
        os.utime(project / "a_x.py", ns=(version, version))  # else a reload may find the .pyc of before
        importlib.reload(a_x)
        assert version == a_x.VERSION
        assert shipped("a_x") == {"a_x.py", f"{sibling}.py"}


def test_an_edited_file_is_read_again_soon_without_a_reload(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    write(project, {"a_x.py": "", "b_x.py": ""})
    assert shipped("a_x") == {"a_x.py"}
    write(project, {"a_x.py": "import b_x"})
    now[0] += 0.5
    assert shipped("a_x") == {"a_x.py", "b_x.py"}


def test_files_that_did_not_change_are_read_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"p_x/__init__.py": "", "p_x/one.py": "", "p_x/two.py": "import b_x", "b_x.py": ""})
    read: list[str] = []
    real = source_imports._read
    monkeypatch.setattr(source_imports, "_read", lambda path: read.append(Path(path).name) or real(path))
    assert source_imports.imports_of(project / "p_x") == {"b_x"}
    assert sorted(read) == ["__init__.py", "one.py", "two.py"]
    write(project, {"p_x/one.py": "import json"})
    assert source_imports.imports_of(project / "p_x") == {"b_x", "json"}
    assert read[3:] == ["one.py"]


def test_unknown_files_are_no_reason_to_fail(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"p_x/__init__.py": "import b_x", "p_x/nested.py": "(" * 5000, "b_x.py": ""})
    (project / "p_x" / "binary.py").write_bytes(b"\0\xff")
    (project / "p_x" / "broken.py").symlink_to("nowhere.py")
    (project / "p_x" / "loop").symlink_to(".")
    (project / "p_x" / "folder.py").mkdir()
    (project / "p_x" / "huge.py").write_text("import never_x\n" * 10_000)
    monkeypatch.setattr(source_imports, "MAX_BYTES", 100_000)
    assert shipped("p_x") == {"p_x", "b_x.py"}


def test_a_huge_package_is_not_read_to_its_end(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {f"p_x/m{number}.py": f"import x{number}" for number in range(20)})
    monkeypatch.setattr(source_imports, "MAX_FILES", 5)
    found = source_imports.imports_of(project / "p_x")
    assert found is not None
    assert len(found) == 5


def test_each_place_is_reported_once(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(project, {"package_x/__init__.py": "", "package_x/deep/code.py": ""})
    with caplog.at_level(logging.INFO, "ray_multicluster_scheduler"):
        assert modules_to_ship(["package_x.deep", "package_x.deep.code"]) == [project / "package_x"]
        modules_to_ship(["package_x"])
    assert caplog.text.count(f"{project / 'package_x'} is shipped") == 1


def test_extension_modules_are_shipped_with_a_notice(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, {"fast_x/__init__.py": "", "fast_x/deep/_fast.abi3.so": "", "lone_x.abi3.so": "", "plain_x.py": ""})
    for name, place, file in (("fast_x", "fast_x", "_fast.abi3.so"), ("lone_x", "lone_x.abi3.so", "lone_x.abi3.so")):
        assert shipped(name) == {place}
        user_modules._cache.clear()
        assert shipped(name) == {place}, "the notice is given once"
        [notice] = capsys.readouterr().err.splitlines()
        assert name in notice
        assert file in notice
    assert shipped("plain_x") == {"plain_x.py"}
    assert capsys.readouterr().err == ""


def test_a_double_of_the_standard_library_is_refused(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(project, {"antigravity.py": "def f(): pass", "a_x.py": "import antigravity"})
    importlib.import_module("antigravity")
    with pytest.raises(TaskSubmissionError, match="named like one of the standard library") as caught:
        modules_to_ship(["antigravity"])
    assert "rename antigravity.py" in (caught.value.next_step or "")
    assert shipped("a_x") == {"a_x.py"}
    assert "named like one of the standard library" in caplog.text, "what is only imported by others is a warning"


def test_two_packages_of_one_name(project: Path) -> None:
    """The second replaces the first: what is left of the first is pickled by value, the second by name."""
    write(project, {"one/twin_x/__init__.py": "def f(): return 1", "two/twin_x/__init__.py": "def f(): return 2"})
    sys.path.insert(0, str(project / "one"))
    first = importlib.import_module("twin_x").f
    assert modules_to_ship(pickling.dumps_with_modules(first)[1]) == [project / "one" / "twin_x"]
    del sys.modules["twin_x"]
    sys.path.insert(0, str(project / "two"))
    second = importlib.import_module("twin_x").f
    assert modules_to_ship(pickling.dumps_with_modules(second)[1]) == [project / "two" / "twin_x"]
    data, modules = pickling.dumps_with_modules(first)
    assert modules_to_ship(modules) == []
    assert pickling.loads(data)() == 1


def test_many_threads_at_once(project: Path) -> None:
    write(project, {f"m{number}_x.py": f"import m{(number + 1) % 20}_x" for number in range(20)})
    answers: list[set[str]] = []
    threads = [threading.Thread(target=lambda: answers.append(shipped("m0_x"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{f"m{number}_x.py" for number in range(20)}] * 8

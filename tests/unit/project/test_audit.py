"""scripts/audit.py reports "no known vulnerability" only if every package was checked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.scripts import load_script

INSTALLED = ["one==1.0", "two==2.0"]
GOOD = [{"name": "one", "version": "1.0", "vulns": []}, {"name": "two", "version": "2.0", "vulns": []}]
FLAW = {"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": [], "description": ""}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_script("audit")
    monkeypatch.setattr(module, "packages", lambda _: INSTALLED)
    return module


def fake(folder: Path, code: int, answer: object = None, error: str = "") -> str:
    """A fake pip-audit that checks its arguments and prints this answer."""
    program = folder / "pip-audit"
    output = "" if answer is None else json.dumps(answer)
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "assert '--strict' in sys.argv\n"
        f"assert open(sys.argv[-1]).read().split() == {INSTALLED!r}\n"
        f"print({output!r})\n"
        f"print({error!r}, file=sys.stderr)\n"
        f"sys.exit({code})\n"
    )
    program.chmod(0o755)
    return str(program)


def test_all_packages_checked_without_vulnerability(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--pip-audit", fake(tmp_path, 0, {"dependencies": GOOD}), "python"]) == 0
    assert "no known vulnerability" in capsys.readouterr().out


def test_a_vulnerability_is_reported(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [{**GOOD[0], "vulns": [FLAW]}, GOOD[1]]
    assert script.main(["--pip-audit", fake(tmp_path, 1, {"dependencies": answers}), "python"]) == 1
    output = capsys.readouterr().out
    assert "one 1.0: PYSEC-1, fixed in 1.1" in output
    assert "1 known" in output


@pytest.mark.parametrize(
    ("code", "answer", "error"),
    [
        (1, None, "ERROR: Failed to reach the index"),
        (0, None, "no output and exit code 0"),
        (0, {"dependencies": GOOD[:1]}, "one is forgotten"),
        (0, {"dependencies": [GOOD[0], {"name": "two", "skip_reason": "not on PyPI"}]}, ""),
        (1, {"dependencies": GOOD}, "ERROR: something"),
        (0, {}, ""),
        (0, [], ""),
    ],
)
def test_an_incomplete_check_is_not_reported_as_clean(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, answer: Any, error: str
) -> None:
    assert script.main(["--pip-audit", fake(tmp_path, code, answer, error), "python"]) == 2
    output = capsys.readouterr()
    assert "not known" in output.err
    assert "no known vulnerability" not in output.out


def test_a_missing_program_or_environment_is_an_error(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert script.main(["--pip-audit", str(tmp_path / "none"), "python"]) == 2
    monkeypatch.undo()
    assert script.main(["--pip-audit", fake(tmp_path, 0, {"dependencies": GOOD}), str(tmp_path / "none")]) == 2
    monkeypatch.setattr(script, "own_pythons", list)
    assert script.main(["--pip-audit", fake(tmp_path, 0, {"dependencies": GOOD})]) == 2
    assert "no known vulnerability" not in capsys.readouterr().out

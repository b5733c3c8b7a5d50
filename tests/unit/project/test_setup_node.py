"""scripts/setup_node.py: installs once, again when needed, and is safe to run concurrently."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.scripts import load_script


class Workshop:
    """The script in a folder of its own, with a stand-in for npm and apt-get."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = load_script("setup_node")
        self.folder = self.script.FOLDER = root
        self.there = {"curl", "node", "npm"}
        self.version, self.npm_runs = 20, 0
        self.apt_runs: list[list[str]] = []
        self.broken = False
        self.script.execute = self._execute
        self.script.node_version = lambda _: self.version
        monkeypatch.setattr(
            self.script.shutil, "which", lambda program: f"/bin/{program}" if program in self.there else None
        )
        (root / "package.json").write_text("{}")

    def _execute(self, command: list[str], folder: Path, failure: str, hint: str) -> None:
        if self.broken:
            raise self.script.SetupError(f"{failure}: {hint}")
        if command[0] == "apt-get":
            self.apt_runs.append(command)
            if "install" in command:
                self.there |= {"curl", "node", "npm"}
            return
        time.sleep(0.1)
        self.npm_runs += 1
        (folder / "node_modules").mkdir()


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


def test_it_is_installed_once_and_again_when_the_packages_change(workshop: Workshop) -> None:
    assert not workshop.script.is_ready()
    assert [workshop.script.main(), workshop.script.main()] == [0, 0]
    assert workshop.npm_runs == 1
    assert workshop.script.is_ready()
    (workshop.folder / "package.json").write_text('{"dependencies": {}}')
    assert workshop.script.main() == 0
    assert workshop.npm_runs == 2


def test_concurrent_runs_install_it_once(workshop: Workshop) -> None:
    both = [threading.Thread(target=workshop.script.main) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert workshop.npm_runs == 1


def test_a_failed_installation_is_not_ready(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.broken = True
    assert workshop.script.main() == 1
    assert "npm failed" in capsys.readouterr().err
    workshop.broken = False
    assert workshop.script.main() == 0


def test_a_missing_program_is_installed_by_root(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.there = {"apt-get", "curl"}
    monkeypatch.setattr(workshop.script.os, "geteuid", lambda: 0)
    assert workshop.script.main() == 0
    assert workshop.apt_runs[-1][-2:] == ["nodejs", "npm"]


@pytest.mark.parametrize(("there", "user"), [({"curl", "npm", "apt-get"}, 1000), ({"curl", "npm"}, 0)])
def test_without_apt_the_error_has_the_next_step(
    there: set[str],
    user: int,
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workshop.there = there
    monkeypatch.setattr(workshop.script.os, "geteuid", lambda: user)
    assert workshop.script.main() == 1
    assert "What to do: install node (Debian: apt-get install nodejs)" in capsys.readouterr().err
    assert not workshop.apt_runs


def test_a_node_that_is_too_old_is_not_replaced(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.version = 16
    assert workshop.script.main() == 1
    assert "Node 16" in capsys.readouterr().err
    assert not workshop.apt_runs

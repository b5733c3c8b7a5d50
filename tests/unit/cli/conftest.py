"""For tests of commands: a real service behind them, and what a command printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ray_multicluster_scheduler.main import main
from tests.unit.service.http_service import HttpService


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


Rmcs = Callable[..., Done]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpService]:
    """Eight CPUs; what is placed runs until a test ends it."""
    with HttpService(tmp_path / "state", auth="token", submission_interval_s=0) as one:
        monkeypatch.setenv("RMCS_ADDRESS", one.address)
        monkeypatch.setenv("RMCS_TOKEN", one.token)
        yield one


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder that is also the working folder, and no clusters.yaml anywhere."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("RMCS_HOME", str(folder))
    monkeypatch.chdir(folder)
    for name in ("RMCS_CONFIG", "RMCS_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def rmcs(capsys: pytest.CaptureFixture[str]) -> Rmcs:
    def run(*words: str) -> Done:
        capsys.readouterr()
        code = main(list(words))
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert "\x1b" not in shown.out + shown.err, "no control characters without a terminal"
        return Done(code, shown.out, shown.err)

    return run


@pytest.fixture(autouse=True)
def _only_settings_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands list the settings that are given; no agent runs here that could outlive its test (tests/conftest.py)."""
    monkeypatch.delenv("RMCS_AGENT_LINGER_S")

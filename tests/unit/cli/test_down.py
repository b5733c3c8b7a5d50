"""`rmcs down`, of a service that takes its time; tests/unit/service/test_up.py has real ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from tests.unit.cli.conftest import Rmcs


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateFolder]:
    """Held by a service that hears no signal."""
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    with StateFolder(tmp_path) as state:
        yield state


def test_one_that_does_not_end_says_where_to_read(state: StateFolder, rmcs: Rmcs) -> None:
    done = rmcs("down", "--state", str(state.path), "--timeout", "0.1", "--drain", "0.1")
    assert done.code == 1
    assert "was told to stop and is still there after 0.2 s." in done.err
    assert "read what it wrote to its stderr, where `rmcs up` was typed" in done.err


@pytest.mark.parametrize("draining", [False, True])
def test_ctrl_c_without_a_wait_for_work(
    state: StateFolder, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, draining: bool
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    state.tell(draining=draining)
    done = rmcs("down", "--state", str(state.path), *(["--drain", "100"] if draining else []))
    assert done.code == 130
    assert f"the service (process {os.getpid()}) was told to stop, and does; `rmcs status` says whether" in done.err
    assert ("draining already" in done.err) == draining
    assert "waits up to" not in done.err


def test_ctrl_c_as_soon_as_the_service_was_told(
    state: StateFolder, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_and_interrupted(_pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "kill", told_and_interrupted)
    done = rmcs("down", "--state", str(state.path), "--drain", "100")
    assert done.code == 130
    assert "goes on draining, and then stops, within 100 s; look with `rmcs status`" in done.err

"""`rmcs down`, of a service that takes its time; tests/unit/service/test_up.py has real ones."""

from __future__ import annotations

import getpass
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.store.state_folder import StateFolder
from tests.unit.cli import terminal
from tests.unit.cli.conftest import Rmcs
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, an_actor
from tests.unit.service.http_service import HttpService, body


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateFolder]:
    """Held by a service that hears no signal."""
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    with StateFolder(tmp_path) as state:
        yield state


def test_a_service_that_does_not_stop_names_its_log(state: StateFolder, rmcs: Rmcs) -> None:
    done = rmcs("down", "--state", str(state.path), "--timeout", "0.1", "--drain", "0.1")
    assert done.code == 1
    assert "still runs 0.2 s after its stop was requested." in done.err
    assert "read the log of `rmcs up` on its stderr" in done.err


@pytest.mark.parametrize("draining", [False, True])
def test_ctrl_c_without_a_wait_for_work(
    state: StateFolder, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, draining: bool
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    state.announce(draining=draining)
    done = rmcs("down", "--state", str(state.path), *(["--drain", "100"] if draining else []))
    assert done.code == 130
    assert f"the service (process {os.getpid()}): stop requested; `rmcs status` shows whether" in done.err
    assert ("draining already" in done.err) == draining
    assert "waits up to" not in done.err


def test_ctrl_c_right_after_the_stop_request(state: StateFolder, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_after_signal(_pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "kill", interrupted_after_signal)
    done = rmcs("down", "--state", str(state.path), "--drain", "100")
    assert done.code == 130
    assert "continues to drain, and then stops, within 100 s; see `rmcs status`" in done.err


def test_one_that_has_ended_meanwhile_has_stopped(
    state: StateFolder, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            state.release()
            raise ProcessLookupError

    monkeypatch.setattr(os, "kill", ended)
    done = rmcs("down", "--state", str(state.path), "--drain", "100")
    assert (done.code, done.out) == (0, f"{state.path}\n")
    assert done.err == f"rmcs: the service (process {os.getpid()}) has stopped\n"


def test_service_of_another_user_names_that_user(
    state: StateFolder, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_pid: int, _number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refused)
    done = rmcs("down", "--state", str(state.path), "--drain", "100")
    assert (done.code, done.out) == (1, "")
    assert f"was not stopped: it runs as {getpass.getuser()}, and you may not stop it." in done.err
    assert f"or root: `sudo rmcs down --state {state.path}`" in done.err
    assert "waits up to" not in done.err
    assert not (state.path / "stop.json").exists(), "the next one who stops it does not want that"


class TestWhatItWaitsFor:
    """While it drains, which the service behind these tests does not really do."""

    def submit(self, service: HttpService) -> None:
        for one in ("runs-1", "runs-2", "waits"):
            service.submit(one, 4)
        until(lambda: len(service.plane.placed) == 2)

    def test_unfinished_items_are_shown(self, service: HttpService, state: StateFolder, rmcs: Rmcs) -> None:
        self.submit(service)
        state.announce(address=service.address)
        done = rmcs("down", "--state", str(state.path), "--timeout", "0.1", "--drain", "2")
        output = done.err.splitlines()
        assert output[0] == "rmcs: the service waits up to 2 s for unfinished items"
        assert re.fullmatch(r"rmcs: unfinished: 2 on mac, 1 waiting; at most [0-2] s more", output[1])
        assert output[2] == "rmcs: the service stops"

    def test_is_nothing(self, service: HttpService, state: StateFolder, rmcs: Rmcs) -> None:
        state.announce(address=service.address)
        done = rmcs("down", "--state", str(state.path), "--timeout", "0", "--drain", "0.2")
        assert "unfinished:" not in done.err
        assert "rmcs: the service stops" in done.err

    def test_is_no_actor(self, state: StateFolder, rmcs: Rmcs, tmp_path: Path) -> None:
        with ActorService(tmp_path / "actors") as service:
            service.post("/api/v1/items", body(an_actor("actor-1")))
            service.submit("runs")
            until(lambda: {"RUNNING"} == {str(row["state"]) for row in service.get("/api/v1/items")["items"]})
            state.announce(address=service.address)
            done = rmcs("down", "--state", str(state.path), "--timeout", "0", "--drain", "2")
        assert "rmcs: unfinished: 1 on mac; at most " in done.err

    def test_cannot_be_seen(
        self, service: HttpService, state: StateFolder, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RMCS_TOKEN", "wrong")
        state.announce(address=service.address)
        done = rmcs("down", "--state", str(state.path), "--timeout", "0", "--drain", "0.2")
        assert "rmcs: unfinished items cannot be seen from here; at most 0 s more" in done.err

    def test_counts_down_before_a_person(
        self, service: HttpService, state: StateFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.submit(service)
        state.announce(address=service.address)
        deaf = f"import os; os.kill = lambda *_: None; {terminal.Terminal.CODE}"
        monkeypatch.setattr(terminal.Terminal, "CODE", deaf)
        one = terminal.Terminal("down", "--state", str(state.path), "--drain", "60")
        try:
            one.until("unfinished: 2 on mac, 1 waiting; at most 60 s more")
            service.post("/api/v1/items/waits/cancel")
            one.until("unfinished: 2 on mac; at most ")
            state.release()
            one.until("has stopped")
        finally:
            one.close()

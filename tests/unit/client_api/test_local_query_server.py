"""The socket where a control plane answers its own user: who may ask, what is answered, what is left behind."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.service import local_programs
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config.home import make_run_folder, sockets
from ray_multicluster_scheduler.control_plane.runtime import local_queries
from tests.unit.client_api.actor_plane import ActorPlane
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import task

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def plane(home: Path) -> Iterator[ActorPlane]:
    with ActorPlane() as control_plane:
        yield control_plane


def ask(plane: ControlPlane, question: object) -> dict[str, Any]:
    path = plane.runtime.questions.path
    assert path is not None
    answer = local_programs.query_program(path, question)  # type: ignore[arg-type]  # some are wrong on purpose
    assert answer is not None
    return answer


def raw(plane: ControlPlane, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(plane.runtime.questions.path))
        connection.sendall(line)
        with connection.makefile("rb") as reader:
            return reader.readline()


class TestTheSocket:
    def test_only_its_owner_can_reach_it_and_it_goes_with_the_control_plane(self, home: Path) -> None:
        with ControlPlane() as plane:
            path = plane.runtime.questions.path
            assert path is not None
            assert path.parent == home / "run"
            assert path.name.startswith(f"{os.getpid()}-")
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list((home / "run").iterdir()) == []

    def test_each_control_plane_of_a_program_has_one(self, plane: ActorPlane) -> None:
        with ControlPlane() as other:
            assert other.runtime.questions.path != plane.runtime.questions.path
            assert [pid for pid, _ in sockets()] == [os.getpid()] * 2

    def test_what_dead_processes_left_is_removed_by_who_finds_it(self, home: Path) -> None:
        make_run_folder()
        dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        left = home / "run" / f"{int(dead.stdout)}-1.sock"
        left.touch()
        (home / "run" / "notes.sock").touch()
        with ControlPlane():
            assert not left.exists()
        left.touch()
        assert list(sockets()) == []
        assert [one.name for one in (home / "run").iterdir()] == ["notes.sock"]

    def test_a_folder_that_others_could_read_is_closed_to_them(self, home: Path) -> None:
        (home / "run").mkdir(parents=True, mode=0o755)
        with ControlPlane():
            assert stat.S_IMODE((home / "run").stat().st_mode) == 0o700

    def test_without_it_the_scheduler_works_and_reports_it_once(
        self, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local_queries, "_logged_problems", set())
        home.mkdir()
        (home / "run").write_text("a file, not a folder")
        with caplog.at_level(logging.WARNING, logger="ray_multicluster_scheduler"):
            for _ in range(2):
                with ControlPlane() as plane:
                    assert plane.runtime.questions.path is None
                    assert plane.task("t1").state is TaskState.RUNNING
        assert len([record for record in caplog.records if "rmcs explain" in record.message]) == 1

    def test_a_path_that_is_too_long_for_a_socket_is_no_accident(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path / ("x" * 120)))
        with ControlPlane() as plane:
            assert plane.runtime.questions.path is None


class TestQuestions:
    def test_an_item_is_explained(self, plane: ActorPlane) -> None:
        handle = plane.task("t1")
        answer = ask(plane, {"explain": "t1"})
        assert answer["program"]["pid"] == os.getpid()
        assert answer["program"]["control_plane"] == "cp1"
        assert answer["explain"] == json.loads(json.dumps(handle.explain(), default=str))

    def test_a_call_of_an_actor_too(self, plane: ActorPlane) -> None:
        call = plane.actor().add.remote(1)
        assert ask(plane, {"explain": call.id})["explain"]["kind"] == "call"

    def test_all_items_newest_first(self, plane: ActorPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("t1", "t2", "t3"):
            plane.task(name)
        waiting = plane.submit(plane.with_payload(task("t4", 8)))
        until(lambda: waiting.state is TaskState.QUEUED)
        monkeypatch.setattr(local_queries, "MAX_LISTED", 3)
        items = ask(plane, {"list": True})["items"]
        assert [(one["id"], one["state"]) for one in items] == [("t4", "QUEUED"), ("t3", "RUNNING"), ("t2", "RUNNING")]
        assert items[1]["cluster"] == "mac"

    def test_what_cannot_be_answered(self, plane: ActorPlane) -> None:
        assert ask(plane, {"explain": "nobody"})["error"] == "UnknownItemError"
        for wrong in ({"explain": 7}, {"list": False}, {}, {"stop": True}):
            assert "Unknown question" in ask(plane, wrong)["message"]
        for line in (b"\n", b"[]\n", b"{\n", b"\xff\n"):
            assert b"one line with a JSON object" in raw(plane, line)

    def test_a_question_without_end_is_cut_off_and_others_go_on(self, plane: ActorPlane) -> None:
        try:
            answer = raw(plane, b"x" * (4 * local_queries.MAX_QUESTION_BYTES))
        except OSError:
            answer = b""
        assert answer == b""
        assert ask(plane, {"list": True})["items"] == []

    def test_a_silent_peer_is_not_asked_after_a_while(self, plane: ActorPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local_queries, "TIMEOUT_S", 0.05)
        assert raw(plane, b"no end of line") == b""

    def test_the_end_does_not_wait_for_silent_peers(self, home: Path) -> None:
        with ControlPlane() as plane:
            silent = socket.socket(socket.AF_UNIX)
            silent.connect(str(plane.runtime.questions.path))
            ask(plane, {"list": True})
        with silent:
            assert silent.recv(1) == b""


class TestAsking:
    def test_a_socket_that_nobody_listens_at_is_removed(self, home: Path) -> None:
        path = make_run_folder() / f"{os.getpid()}-9999.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        assert local_programs.query_program(path, {"list": True}) is None
        assert not path.exists()

    def test_an_answer_that_does_not_come_or_makes_no_sense(self, home: Path) -> None:
        path = make_run_folder() / f"{os.getpid()}-9999.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            answer = local_programs.query_program(path, {"list": True}, timeout=0.05)
        assert answer is not None
        assert "timed out" in answer["message"]

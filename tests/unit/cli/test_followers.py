"""Commands that follow survive a restart of the service: nothing is missed, nothing is printed twice."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.service import item_wait
from ray_multicluster_scheduler.cli.service.item_wait import LogFollower, last_lines
from ray_multicluster_scheduler.common.exception import NotAllowedError, ServiceUnavailableError
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.support.eventually import until
from tests.support.running_service import RunningService
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.terminal import Terminal
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]
AWAY = "This continues when it is back; Ctrl+C stops it."


class Follower:
    """A command in a process of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        name = "-".join(re.sub(r"\W", "", word) for word in words)
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            command = [sys.executable, "-m", "ray_multicluster_scheduler", *words]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().rpartition("\n")[0].splitlines()]

    def until(self, holds: Callable[[], object]) -> None:
        until(lambda: self.process.poll() is not None or holds(), 90)
        assert self.process.poll() is None, self.err.read_text()

    def interrupted(self) -> str:
        """What it said, after Ctrl+C."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(30) == 130
        return self.err.read_text()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    """A real one, whose cluster does not answer."""
    config = tmp_path / "clusters.yaml"
    config.write_text("clusters:\n- {name: mac, dashboard: 'http://127.0.0.1:9'}\n")
    with RunningService(config, tmp_path / "state") as service:
        monkeypatch.setenv("RMCS_HOME", str(service.state))
        yield service


@pytest.mark.parametrize("moves", [False, True])
def test_a_service_that_is_killed_and_started_again(
    running: RunningService, rmcs: Rmcs, tmp_path: Path, moves: bool
) -> None:
    """At its port or, as it chose that itself, at another: a client that used its state folder finds it again."""
    owner = json.loads(rmcs("status", "-o", "json").out)["user"]
    assert rmcs("queue", "pause", "--owner", owner).code == 0  # what is submitted waits
    assert rmcs("job", "submit", "--no-wait", "--submission-id", "first", "--", "true").code == 0
    events = Follower(tmp_path, "events", "-f", "--since", "0", "-o", "json")
    status = Follower(tmp_path, "status", "--watch", "--every", "0.2", "-o", "json")
    logs = Follower(tmp_path, "job", "logs", "-f", "first")
    everybody = (events, status, logs)
    try:
        events.until(lambda: [one for one in events.lines() if one.get("id") == "first"])
        status.until(lambda: len(status.lines()) > 1)
        logs.until(lambda: "first is " in logs.err.read_text())
        running.kill()
        for one in everybody:
            one.until(lambda one=one: AWAY in one.err.read_text())  # type: ignore[misc]  # bound at once
        seen, before = len(status.lines()), running.address
        running.address = "" if moves else before
        running.start()
        assert (running.address != before) == moves
        assert rmcs("job", "submit", "--no-wait", "--submission-id", "second", "--", "true").code == 0
        events.until(lambda: [one for one in events.lines() if one.get("id") == "second"])
        status.until(lambda: len(status.lines()) > seen + 1 and status.lines()[-1]["queue"]["depth"] == 2)
        logs.until(lambda: "answers again" in logs.err.read_text())
        for one in everybody:
            output = one.interrupted()
            assert output.count(AWAY) == 1, output
            assert output.count("the service answers again") == 1, output
            assert "Traceback" not in output
        numbers = [one["number"] for one in events.lines() if one["number"] is not None]
        assert numbers == list(range(1, len(numbers) + 1))
        assert status.lines()[-1]["queue"]["depth"] == 2
        assert logs.out.read_text() == ""
    finally:
        for one in everybody:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()


class Forgetful:
    """Stands between a client and a service, and forgets the lines that it has when it is asked to: they stay open, and
    nothing goes over them any more. New ones are as good as before."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.forgotten: set[socket.socket] = set()
        self._lines: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take)

    def __enter__(self) -> Forgetful:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self.cut()
        self._thread.join()
        for one in (self._door, *self._lines):
            one.close()

    def cut(self) -> None:
        """Both ends of each line hear that."""
        for one in self._lines:
            with suppress(OSError):  # its other end may be gone
                one.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        self.forgotten.update(self._lines)

    def _take(self) -> None:
        with ThreadPoolExecutor(64) as carriers:
            while True:
                try:
                    near = self._door.accept()[0]
                except OSError:  # it was closed
                    return
                far = socket.create_connection(("127.0.0.1", self._to))
                self._lines += [near, far]
                carriers.submit(self._carry, near, far)
                carriers.submit(self._carry, far, near)

    def _carry(self, come: socket.socket, go: socket.socket) -> None:
        with suppress(OSError):
            while piece := come.recv(65536):
                if come not in self.forgotten:
                    go.sendall(piece)
            if come not in self.forgotten:
                go.shutdown(socket.SHUT_WR)


def state(service: HttpService, item_id: str) -> str:
    return str(service.get(f"/api/v1/items/{item_id}")["state"])


def prints(service: HttpService, text: str, attempt: int = 1) -> None:
    runtime = service.plane.runtime
    runtime.call_and_wait(lambda: runtime.collector.output("mac", "t1", attempt, "stdout", text))


def killed(service: HttpService) -> None:
    """What is not written is lost; it stays away until it is started."""
    service.plane.runtime._persistence.write_output = lambda: None  # type: ignore[method-assign]  # a kill does not do it
    service.stop()


class TestLogs:
    @pytest.fixture
    def written(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What the command wrote so far."""
        pieces: list[str] = []
        monkeypatch.setattr(item_wait, "to_stdout", pieces.append)
        return pieces

    def followed(self, rmcs: Rmcs, *actions: Callable[[], object], end: Callable[[], object] = lambda: None) -> None:
        """While these things happen one after the other. ``end`` lets it end if one of them does not happen."""

        def happen() -> None:
            try:
                for action in actions:
                    action()
            except BaseException:
                end()
                raise

        with ThreadPoolExecutor(1) as thread:
            happened = thread.submit(happen)
            done = rmcs("task", "logs", "-f", "t1")
            happened.result()
        assert done.code == 0

    def submitted(self, service: HttpService, **values: Any) -> None:
        service.submit("t1", **values)
        until(lambda: state(service, "t1") == "RUNNING")

    def is_received(self, received: list[str], text: str) -> Callable[[], None]:
        return lambda: until(lambda: "".join(received) == text)

    def test_lost_output_of_a_killed_service_hides_no_later_output(
        self, service: HttpService, rmcs: Rmcs, written: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        output: list[str] = []
        monkeypatch.setattr(item_wait, "notify", output.append)
        self.submitted(service)
        prints(service, "step 1\n")
        service.plane.runtime.call_and_wait(service.plane.runtime._persistence.write_output)
        until(lambda: service.plane.store.output("t1", 1))
        prints(service, "step 2\n")
        self.followed(
            rmcs,
            self.is_received(written, "step 1\nstep 2\n"),
            lambda: killed(service),
            lambda: until(lambda: AWAY in "".join(output)),
            service.start,
            lambda: prints(service, "step 3\n"),
            self.is_received(written, "step 1\nstep 2\nstep 3\n"),
            lambda: service.plane.end(CallResult("t1", 1, "succeeded")),
        )
        assert "".join(written) == "step 1\nstep 2\nstep 3\n"
        assert [AWAY in one for one in output] == [True, False]
        assert output[1] == "the service answers again"

    def test_a_line_that_is_dead_is_not_waited_for(
        self, service: HttpService, rmcs: Rmcs, written: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is between the two has forgotten the line, and tells nobody: nothing comes on it any more."""
        monkeypatch.setattr(item_wait, "STREAM_TIMEOUT_S", 0.5)
        self.submitted(service)
        prints(service, "one\n")
        with Forgetful(service.port) as between:
            monkeypatch.setenv("RMCS_ADDRESS", f"http://127.0.0.1:{between.port}")
            self.followed(
                rmcs,
                self.is_received(written, "one\n"),
                between.forget,
                lambda: prints(service, "two\n"),
                self.is_received(written, "one\ntwo\n"),
                lambda: service.plane.end(CallResult("t1", 1, "succeeded")),
                end=lambda: (service.plane.end(CallResult("t1", 1, "succeeded")), between.cut()),
            )
        assert between.forgotten

    def test_new_data_resets_the_stream_timeout(
        self, service: HttpService, rmcs: Rmcs, written: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was made after a long silence, and would be left silent for as long again."""
        monkeypatch.setattr(item_wait, "STREAM_TIMEOUT_S", 300.0)
        self.submitted(service)
        prints(service, "one\n")
        with Forgetful(service.port) as between:
            monkeypatch.setenv("RMCS_ADDRESS", f"http://127.0.0.1:{between.port}")
            self.followed(
                rmcs,
                self.is_received(written, "one\n"),
                lambda: monkeypatch.setattr(item_wait, "STREAM_TIMEOUT_S", 0.5),
                lambda: prints(service, "two\n"),
                self.is_received(written, "one\ntwo\n"),
                between.forget,
                lambda: prints(service, "three\n"),
                self.is_received(written, "one\ntwo\nthree\n"),
                lambda: service.plane.end(CallResult("t1", 1, "succeeded")),
                end=lambda: (service.plane.end(CallResult("t1", 1, "succeeded")), between.cut()),
            )
        assert between.forgotten

    def test_second_attempt_is_not_printed_twice(self, service: HttpService, rmcs: Rmcs, written: list[str]) -> None:
        self.submitted(service, crash_retries=1, retries=1, lost_retries=1)
        prints(service, "first\n")
        self.followed(
            rmcs,
            self.is_received(written, "first\n"),
            lambda: service.plane.end(CallResult("t1", 1, "failed", code="CRASH", message="it fell")),
            lambda: until(lambda: service.get("/api/v1/items/t1")["attempt"] == 2),
            lambda: until(lambda: state(service, "t1") == "RUNNING"),
            lambda: prints(service, "second\n", 2),
            self.is_received(written, "first\nsecond\n"),
            service.restart,
            lambda: prints(service, "third\n", 2),
            self.is_received(written, "first\nsecond\nthird\n"),
            lambda: service.plane.end(CallResult("t1", 2, "succeeded")),
        )
        assert "".join(written) == "first\nsecond\nthird\n"


class TestLogFollower:
    def followed(self, *connections: str, size: int = 3, kept: int = 1000) -> str:
        out: list[str] = []
        one = LogFollower(out.append)
        for text in connections:
            one.start_attempt(1)
            data = text.encode()
            for at in range(0, len(data), size):
                one.feed(data[at : at + size])
        return "".join(out)

    @pytest.mark.parametrize("size", [1, 4, 1000])
    @pytest.mark.parametrize(
        ("connections", "text"),
        [
            (["a\nb\n", "a\nb\n"], "a\nb\n"),
            (["a\nb", "a\nb\nc\n"], "a\nb\nc\n"),
            (["tick 1\ntick 2\n", "tick 1\ntick 3\ntick 4\n"], "tick 1\ntick 2\ntick 3\ntick 4\n"),
            (["a\nhalf a li", "a\nb\n"], "a\nhalf a li\nb\n"),
            (["ü\n", "ü\n", "ü\nö\n"], "ü\nö\n"),
            (["a\nb\n", "a\nc\n", "a\nc\nd\n"], "a\nb\nc\nd\n"),
            (["", "a\n"], "a\n"),
        ],
    )
    def test_repeated_output_is_skipped(self, connections: list[str], text: str, size: int) -> None:
        assert self.followed(*connections, size=size) == text

    def test_of_much_only_the_end_is_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(item_wait, "_REMEMBERED", 20)
        text = "".join(f"line {number}\n" for number in range(50))
        assert self.followed(text, text + "new\n", text + "new\n") == text + "new\n"
        other = text.removesuffix("line 49\n") + "line 50\n"
        assert self.followed(text, other, other + "line 51\n") == text + "line 50\nline 51\n"

    def test_another_attempt_is_another_text(self) -> None:
        out: list[str] = []
        one = LogFollower(out.append)
        for number in (1, 2):
            one.start_attempt(number)
            one.feed(b"same\n")
        assert out == ["same\n", "same\n"]

    @pytest.mark.parametrize(("lines", "text"), [(0, ""), (1, "c"), (2, "b\nc"), (9, "a\nb\nc")])
    def test_last_lines(self, lines: int, text: str) -> None:
        assert last_lines("a\nb\nc", lines) == text


class TestPatience:
    def ask(self, *answers: Exception | str) -> Callable[[], str]:
        left = list(answers)

        def one() -> str:
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return one

    def test_a_watching_command_waits_without_limit(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        now = [0.0]
        monkeypatch.setattr(item_wait.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(item_wait.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 3600))
        away = ServiceUnavailableError("It does not answer.")
        assert item_wait.retry_while_away(self.ask(away, away, TimeoutError(), "here"), None) == "here"
        assert capsys.readouterr().err == f"rmcs: It does not answer. {AWAY}\nrmcs: the service answers again\n"
        with pytest.raises(ServiceUnavailableError):
            item_wait.retry_while_away(self.ask(away, away, "here"))

    def test_a_refused_request_is_not_retried(self) -> None:
        with pytest.raises(NotAllowedError):
            item_wait.retry_while_away(self.ask(NotAllowedError("no"), "here"), None)


def test_status_on_a_terminal_shows_that_the_service_is_away(service: HttpService) -> None:
    terminal = Terminal("status", "--watch", "--every", "0.3")
    try:
        terminal.until("mac")
        service.stop()
        terminal.until("Ctrl+C stops it.")
        service.start()
        while "ends it" in terminal.text:
            terminal.text = ""
            terminal.until("Nothing waits.")
        terminal.type("\x03")
        assert terminal.end() == 130
    finally:
        terminal.close()

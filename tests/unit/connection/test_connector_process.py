"""ConnectorProcess: connectors are killed when they hang, replaced, and never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.scheduler.connection import connector
from ray_multicluster_scheduler.scheduler.connection.connector import protocol
from ray_multicluster_scheduler.scheduler.connection.ray_client import connector_process
from ray_multicluster_scheduler.scheduler.connection.ray_client.client_carrier import ConnectorPackageStore
from ray_multicluster_scheduler.scheduler.connection.ray_client.connector_process import Command, ConnectorProcess
from tests.support.eventually import eventually

FIND = protocol.ConnectorConfig("a", "agent-1", "h:10001", ("127.0.0.1", 1), 5.0)
MAKE = replace(FIND, join={"token": "t"}, package="/p", inside="INSIDE")
HEAD = """
import json, os, subprocess, sys, time
order = json.loads(sys.stdin.readline())
say = lambda event, **more: print(json.dumps({"event": event, **more}), flush=True)
starts = open(NOTES, "a"); starts.write(("make" if order["join"] else "find") + "\\n"); starts.close()
def live():
    while True:
        say("beat"); time.sleep(0.05)
"""
READY = "say('ready', session='s1')\n"


class Script:
    """A connector that does what a test says; it notes each start."""

    def __init__(self, folder: Path, text: str) -> None:
        self.notes = folder / "starts"
        self.file = folder / "connector.py"
        self.becomes(text)

    def becomes(self, text: str) -> None:
        self.file.write_text(HEAD.replace("NOTES", repr(str(self.notes))) + textwrap.dedent(text))

    def command(self) -> Command:
        return Command([sys.executable, str(self.file)], dict(os.environ))

    def starts(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


@pytest.fixture(autouse=True)
def _fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_process, "_BACKOFF_S", (0.01,))


async def test_a_hanging_connector_is_killed_and_the_next_one_only_finds_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_process, "SILENCE_TIMEOUT_S", 3.0)
    script = Script(tmp_path, READY + "time.sleep(1000)")
    kept = ConnectorProcess(MAKE, FIND, script.command)
    await kept.ready.wait()
    hung = kept.pid
    script.becomes(READY + "live()")
    assert hung is not None
    await eventually(lambda: kept.ready.is_set() and kept.pid != hung)
    starts = script.starts()
    assert (starts[0], set(starts[1:])) == ("make", {"find"})
    assert not psutil.pid_exists(hung)
    assert kept.failure is not None
    assert "silent for 3 s" in kept.failure.sentence
    await kept.stop()


async def test_a_connector_with_heartbeats_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_process, "SILENCE_TIMEOUT_S", 3.0)
    script = Script(tmp_path, READY + "live()")
    kept = ConnectorProcess(MAKE, FIND, script.command)
    await kept.ready.wait()
    first = kept.pid
    await asyncio.sleep(4.0)
    assert (kept.pid, script.starts()) == (first, ["make"])
    await kept.stop()


async def test_a_connector_that_never_gets_ready_is_killed_and_its_phase_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_process, "CREATE_TIMEOUT_S", 2.5)
    script = Script(tmp_path, "say('phase', phase='connect to h:10001'); time.sleep(1000)")
    kept = ConnectorProcess(MAKE, FIND, script.command)
    failure = await kept.wait_ended()
    assert failure == connector_process.ConnectorFailure(
        "HEAD_UNREACHABLE", "the connector took more than 2.5 s to connect to h:10001"
    )
    assert script.starts() == ["make"], "its creator decides what comes next"


async def test_a_program_without_output_is_killed_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_process, "FIRST_OUTPUT_TIMEOUT_S", 0.5)
    mute = tmp_path / "python"
    mute.write_text("#!/bin/sh\nexec sleep 300\n")
    mute.chmod(0o700)
    kept = ConnectorProcess(MAKE, FIND, lambda: Command([str(mute)], dict(os.environ)))
    failure = await asyncio.wait_for(kept.wait_ended(), 60)
    assert failure.code == "CONNECTOR_FAILED"
    assert failure.sentence == f"{mute} printed nothing for 0.5 s after its start as a connector, and was killed"
    assert "connector_python is the path of a Python" in failure.next_step


async def test_a_real_connector_speaks_before_it_does_anything_that_may_take_long() -> None:
    boot = Path(connector.__file__).with_name("boot.py")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        order = replace(FIND, head=f"127.0.0.1:{silent.getsockname()[1]}")
        kept = ConnectorProcess(order, order, lambda: Command([sys.executable, "-u", str(boot)], dict(os.environ)))
        await eventually(lambda: kept.phase.startswith("check whether") or kept.phase == "import ray")
        await kept.stop()


@pytest.mark.parametrize(
    ("text", "reported"),
    [("sys.exit(3)", True), ("say('phase', phase='connect to h:10001'); sys.exit(3)", False)],
)
async def test_a_program_that_ends_without_output_may_not_be_python(tmp_path: Path, text: str, reported: bool) -> None:
    failure = await ConnectorProcess(MAKE, FIND, Script(tmp_path, text).command).wait_ended()
    assert ("connector_python" in failure.next_step) is reported


@pytest.mark.parametrize(
    ("order", "text", "may"),
    [
        (MAKE, "say('phase', phase='connect to h:10001', makes=False); sys.exit(3)", False),
        (MAKE, "say('phase', phase='start the gateway', makes=True); sys.exit(3)", True),
        (MAKE, READY + "say('gone', session='s1', why='', dead=True)", True),
        (FIND, READY + "say('gone', session='s1', why='', dead=True)", True),
    ],
)
async def test_whether_there_may_be_a_gateway(
    tmp_path: Path, order: protocol.ConnectorConfig, text: str, may: bool
) -> None:
    kept = ConnectorProcess(order, FIND, Script(tmp_path, text).command)
    assert kept.may_exist is (order is FIND)
    await kept.wait_ended()
    assert kept.may_exist is may


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("say('failed', code='RAY_MISMATCH', sentence='the cluster runs Ray 9')", "RAY_MISMATCH", "runs Ray 9"),
        ("sys.stderr.write('no module named x'); sys.exit(3)", "CONNECTOR_FAILED", "status 3.*no module named x"),
        ("os.kill(os.getpid(), 9)", "CONNECTOR_FAILED", "by signal 9"),
        ("say('gone', session='s1', why='no such wheel', dead=False)", "CONNECTOR_FAILED", "no such wheel"),
        ("print('no JSON', flush=True); live()", "CONNECTOR_FAILED", "the connector failed: JSONDecodeError"),
    ],
)
async def test_the_failure_of_the_first_connector_is_reported(tmp_path: Path, text: str, code: str, says: str) -> None:
    kept = ConnectorProcess(MAKE, FIND, Script(tmp_path, text).command)
    failure = await kept.wait_ended()
    assert failure.code == code
    assert re.search(says, failure.sentence), failure.sentence


async def test_a_connector_that_closes_its_output_and_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_process, "_EXIT_TIMEOUT_S", 0.5)
    script = Script(tmp_path, "note = open('/dev/null'); os.dup2(note.fileno(), 1); time.sleep(1000)")
    failure = await asyncio.wait_for(ConnectorProcess(MAKE, FIND, script.command).wait_ended(), 60)
    assert "the connector closed its output and did not end while it was to start" in failure.sentence


async def test_children_of_a_connector_do_not_delay_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector_process, "_EXIT_TIMEOUT_S", 0.5)
    note = tmp_path / "child"
    leaving = f"""
        one = subprocess.Popen(
            [sys.executable, '-c', 'import time; time.sleep(1000)'], stdout=subprocess.DEVNULL, start_new_session=True
        )
        open({str(note)!r}, 'w').write(str(one.pid))
        sys.exit(3)
    """
    try:
        failure = await asyncio.wait_for(
            ConnectorProcess(MAKE, FIND, Script(tmp_path, leaving).command).wait_ended(), 60
        )
        assert "ended (status 3)" in failure.sentence
    finally:
        psutil.Process(int(note.read_text())).kill()


async def test_an_interpreter_that_cannot_be_started_is_reported() -> None:
    kept = ConnectorProcess(MAKE, FIND, lambda: Command(["/no/such/python"], {}))
    failure = await kept.wait_ended()
    assert "/no/such/python cannot be started: No such file" in failure.sentence


async def test_an_unreadable_token_is_reported() -> None:
    def command() -> Command:
        raise ConfigurationError("auth_token of cluster a refers to NOTHING, which is not set.")

    failure = await ConnectorProcess(MAKE, FIND, command).wait_ended()
    assert failure.code == "HEAD_WRONG_TOKEN"
    assert "NOTHING" in failure.sentence


async def test_a_gateway_that_is_gone_is_looked_for_no_more(tmp_path: Path) -> None:
    script = Script(tmp_path, READY + "say('gone', session='s2', why='', dead=False)")
    kept = ConnectorProcess(MAKE, FIND, script.command)
    await eventually(lambda: kept.gone is not None)
    await asyncio.sleep(0.3)
    assert script.starts() == ["make"]
    assert (kept.session, kept.gone) == ("s1", connector_process.GatewayGone("s2", "Ray gives no reason", dead=False))
    await kept.stop()


async def test_an_inherited_gateway_is_searched_while_the_cluster_does_not_answer(tmp_path: Path) -> None:
    script = Script(tmp_path, "say('failed', code='HEAD_UNREACHABLE', sentence='nothing listens')")
    kept = ConnectorProcess(FIND, FIND, script.command, session="s1")
    await eventually(lambda: len(script.starts()) > 2)
    assert kept.gone is None, "nobody said so"
    script.becomes(READY + "live()")
    await kept.ready.wait()
    await kept.stop()


async def test_a_connector_with_invalid_output_is_replaced_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(tmp_path, READY + "print('no JSON', flush=True); live()")
    kept = ConnectorProcess(MAKE, FIND, script.command)
    await kept.ready.wait()
    odd = kept.pid
    script.becomes(READY + "live()")
    await eventually(lambda: kept.ready.is_set() and kept.pid != odd)
    assert kept.failure is not None
    assert "JSONDecodeError" in kept.failure.sentence
    assert "unexpected error of the connector of cluster a" in caplog.text
    await kept.stop()


async def test_stop_leaves_no_process(tmp_path: Path) -> None:
    child = tmp_path / "child"
    kept = ConnectorProcess(MAKE, FIND, Script(tmp_path, _with_child(child)).command)
    await kept.ready.wait()
    pids = [kept.pid, int(child.read_text())]
    await kept.stop()
    await eventually(lambda: not any(_alive(pid) for pid in pids))


def _with_child(note: Path) -> str:
    return (
        "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"open({str(note)!r}, 'w').write(str(one.pid))\n" + READY + "live()"
    )


def _alive(pid: int | None) -> bool:
    return pid is not None and psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_the_gateway_is_ended_through_its_connector(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        READY + "order = json.loads(sys.stdin.readline()); assert order['order'] == 'kill'\n"
        "say('answer', id=order['id'], answer=None, problem=None)\nlive()",
    )
    kept = ConnectorProcess(MAKE, FIND, script.command)
    await kept.ready.wait()
    assert await kept.kill_gateway()
    await kept.stop()
    assert not await kept.kill_gateway(), "nobody is there to do it"


async def test_packages_go_through_the_connector_and_errors_are_raised(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        READY + "for line in sys.stdin:\n"
        "    order = json.loads(line)\n"
        "    if order['order'] == 'has package':\n"
        "        say('answer', id=order['id'], answer=order['uri'] == 'gcs://there.zip', problem=None)\n"
        "    elif open(order['path'], 'rb').read() == b'zipped':\n"
        "        say('answer', id=order['id'], answer=None, problem=None)\n"
        "    else:\n"
        "        say('answer', id=order['id'], answer=None, problem='it is too large')\n",
    )
    kept = ConnectorProcess(MAKE, FIND, script.command)
    await kept.ready.wait()
    packages = ConnectorPackageStore("a", kept.ask)
    assert await packages.package_exists("gcs://there.zip")
    assert not await packages.package_exists("gcs://gone.zip")
    await packages.upload_package("gcs://new.zip", b"zipped")
    (tmp_path / "big.zip").write_bytes(b"much more")
    with pytest.raises(ClusterConnectionError, match="it is too large"):
        await packages.upload_package("gcs://new.zip", tmp_path / "big.zip")
    await kept.stop()
    with pytest.raises(ClusterConnectionError, match="cluster 'a' has no connector"):
        await packages.package_exists("gcs://there.zip")


async def test_a_connector_that_lives_but_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    kept = ConnectorProcess(MAKE, FIND, Script(tmp_path, READY + "live()").command)
    await kept.ready.wait()
    with pytest.raises(ClusterConnectionError, match=r"no answer within 0\.2 s"):
        await asyncio.wait_for(kept.ask("has package", timeout_s=0.2, uri="gcs://x.zip"), 60)
    await kept.stop()


async def test_a_connector_that_ends_answers_no_question(tmp_path: Path) -> None:
    kept = ConnectorProcess(MAKE, FIND, Script(tmp_path, READY + "sys.stdin.readline()").command)
    await kept.ready.wait()
    with pytest.raises(ClusterConnectionError, match="the connector ended"):
        await kept.ask("has package", uri="gcs://x.zip")
    await kept.stop()


PARENT = """
import subprocess, sys, time
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
child = subprocess.Popen([sys.executable, "-u", sys.argv[1]], start_new_session=True, **pipes)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
async def test_a_connector_that_is_stopped_does_not_outlive_the_process_that_started_it() -> None:
    boot = Path(connector.__file__).with_name("boot.py")
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(boot), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))
    try:
        # It waits for its order, and so has said by now with whom it is to end.
        await eventually(lambda: child.status() == psutil.STATUS_SLEEPING and _waits_for_input(child))
        child.suspend()
        parent.kill()
        await parent.wait()
        await eventually(lambda: not _alive(child.pid))
    finally:
        if _alive(child.pid):
            child.kill()


def _waits_for_input(process: psutil.Process) -> bool:
    """Its standard output is not its first one any more: see Voice."""
    return os.readlink(f"/proc/{process.pid}/fd/1") == os.readlink(f"/proc/{process.pid}/fd/2")


def test_an_order_survives_the_pipe() -> None:
    assert protocol.ConnectorConfig.from_line(MAKE.line()) == MAKE
    assert json.loads(FIND.line())["join"] is None

"""ClientCarrier: when a gateway counts as dead, and how connectors are started."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from ray_multicluster_scheduler.control_plane.config import ClusterConfig, Settings
from ray_multicluster_scheduler.scheduler.connection.agents.agent_launcher import JoinInvitation
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.connector.diagnosis import known_death
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import CLUSTER_RESTARTED, LinkProblem
from ray_multicluster_scheduler.scheduler.connection.ray_client import client_carrier, connector_process
from ray_multicluster_scheduler.scheduler.connection.ray_client.client_carrier import ClientCarrier
from tests.support.eventually import eventually
from tests.unit.connection.conftest import Plane
from tests.unit.connection.test_connector_process import HEAD, READY

AGENT = AgentRecord("a", "agent-1", "secret", "127.0.0.1", 1, carrier="ray_client", session="s1")


def invitation(plane: Plane) -> JoinInvitation:
    return JoinInvitation("127.0.0.1", plane.number, "token", None)


class CarrierBench:
    """The carrier of one cluster, and interpreters for its connectors that do what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.notes = folder, folder / "starts"
        self.keys: dict[str, Any] = {"head_address": "127.0.0.1:1"}
        self.config = ClusterConfig(name="a", **self.keys)
        self.carrier = ClientCarrier(lambda _: self.config, Settings())

    def interpreter(self, name: str, text: str) -> str:
        path = self.folder / name
        note = f"open({str(self.notes)!r}, 'a').write({name!r} + ' ' + os.environ.get('RAY_AUTH_TOKEN', '-') + '\\n')\n"
        head = HEAD.replace("NOTES", repr(str(self.folder / "makes")))
        path.write_text(f"#!{sys.executable}\n" + head + note + text)
        path.chmod(0o700)
        return str(path)

    def uses(self, **keys: Any) -> None:
        self.keys |= keys
        self.config = ClusterConfig(name="a", **self.keys)

    def restore(self) -> Any:
        self.carrier.restore(AGENT, 1, cast("Any", None))
        return self.carrier._processes[AGENT.agent]

    def starts(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CarrierBench]:
    monkeypatch.setattr(connector_process, "_BACKOFF_S", (0.01,))
    made = CarrierBench(tmp_path)
    yield made
    await made.carrier.close()


@pytest.mark.parametrize(
    ("gone", "over"),
    [
        ("session='s1', why='it was closed', dead=True", "its actor is gone: it was closed"),
        ("session='s2', why='', dead=False", CLUSTER_RESTARTED),
        ("session='s1', why='The actor died because its node has died', dead=False", None),
        ("session='s1', why='', dead=False", None),
    ],
)
async def test_vanished_gateway_is_dead_only_with_proof(bench: CarrierBench, gone: str, over: str | None) -> None:
    bench.uses(connector_python=bench.interpreter("python", READY + f"say('gone', {gone})"))
    process = bench.restore()
    await eventually(lambda: process.gone is not None)
    assert await bench.carrier.death_reason("a", AGENT.agent) == over


def test_only_the_nodes_own_report_proves_a_death() -> None:
    died = "The actor died unexpectedly before finishing this task.\n\tactor_id: 12\n"
    worker = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR."
    node = "The actor died because its node has died. Node Id: 77"
    killed = "The actor is dead because it was killed by `ray.kill`."
    assert known_death(RuntimeError(died + worker)) == worker.rstrip(".")
    assert known_death(RuntimeError(died + node)) is None
    assert known_death(RuntimeError(died + killed)) is None, "that is reported when the order is given"
    assert known_death(worker) == worker.rstrip("."), "the cause that the cluster keeps is judged alike"
    assert known_death(node) is None
    assert known_death("") is None
    assert known_death(RuntimeError("The actor 12 is unavailable: connection reset")) is None
    assert known_death(asyncio.CancelledError()) is None


async def test_the_next_connector_uses_the_current_configuration(bench: CarrierBench, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    note = "open({!r}, 'w').write(order['head'])\n"
    bench.uses(connector_python=bench.interpreter("before", note.format(str(first)) + READY), auth_token="old" * 10)
    bench.restore()
    await eventually(first.exists)
    bench.uses(
        connector_python=bench.interpreter("after", note.format(str(second)) + READY + "live()"),
        auth_token="new" * 10,
        head_address="127.0.0.1:2",
    )
    await eventually(lambda: second.exists() and second.read_text() != "")
    assert bench.starts()[0] == "before " + "old" * 10
    assert bench.starts()[-1] == "after " + "new" * 10
    assert (first.read_text(), second.read_text()) == ("127.0.0.1:1", "127.0.0.1:2")


async def test_a_missing_interpreter_raises_and_is_looked_up_again(bench: CarrierBench) -> None:
    bench.uses(connector_python="/no/such/python")
    process = bench.restore()
    await eventually(lambda: process.failure is not None)
    assert process.failure.code == "CONNECTOR_NO_RAY"
    assert "/no/such/python, which cannot be run" in process.failure.sentence
    bench.uses(connector_python=bench.interpreter("python", READY + "live()"))
    await asyncio.wait_for(process.ready.wait(), 60)


async def test_a_gateway_without_a_connection_ends_after_half_a_minute(
    bench: CarrierBench, plane: Plane, tmp_path: Path
) -> None:
    note = tmp_path / "join"
    text = f"open({str(note)!r}, 'w').write(json.dumps(order['join']))\n"
    failed = "say('failed', code='HEAD_UNREACHABLE', sentence='nothing listens')"
    bench.uses(connector_python=bench.interpreter("python", text + failed))
    with pytest.raises(LinkProblem, match="nothing listens"):
        await bench.carrier.launch(plane.link(), invitation(plane))
    assert json.loads(note.read_text())["first_join_s"] == 30.0


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("say('failed', code='HEAD_WRONG_TOKEN', sentence='it asks for a token')", False),
        ("say('phase', phase='start the gateway', makes=True); sys.exit(3)", True),
    ],
)
async def test_leaving_a_gateway_to_its_lease_is_logged_only_if_it_may_exist(
    bench: CarrierBench, plane: Plane, caplog: pytest.LogCaptureFixture, text: str, reported: bool
) -> None:
    caplog.set_level("INFO")
    bench.uses(connector_python=bench.interpreter("python", text))
    with pytest.raises(LinkProblem):
        await bench.carrier.launch(plane.link(), invitation(plane))
    await bench.carrier.stop("a", "agent-1")
    assert ("could not be stopped; its lease ends it" in caplog.text) is reported


async def test_the_error_for_a_program_that_is_not_python_explains_connector_python(
    bench: CarrierBench, plane: Plane
) -> None:
    bench.uses(connector_python="/bin/true")
    with pytest.raises(LinkProblem, match=r"true\): the connector ended \(status 0\)") as caught:
        await bench.carrier.launch(plane.link(), invitation(plane))
    assert caught.value.code == "CONNECTOR_FAILED"
    assert "connector_python is the path of a Python on this machine" in str(caught.value.next_step)


async def test_the_error_for_a_late_gateway_has_the_phase_of_its_connector(
    bench: CarrierBench, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_carrier, "JOIN_TIMEOUT_S", 2.5)
    text = "say('phase', phase='connect to the head'); time.sleep(1000)"
    bench.uses(connector_python=bench.interpreter("python", text))
    with pytest.raises(LinkProblem, match="did not join within 2.5 s: its connector was to connect to the head"):
        await bench.carrier.launch(plane.link(), invitation(plane))

"""Actors through a service, on real clusters: create, call, find, kill, restore, and end with their program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as rmcs
from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.gangs.member import member
from tests.integration.counter_actor import Counter
from tests.support.eventually import until
from tests.support.running_service import RunningService


@pytest.fixture(scope="module")
def service(fleet: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    state = tmp_path_factory.mktemp("service") / "state"
    with RunningService(Path(fleet.config_path), state, program_lease_s=20) as running:
        yield running
        running.stop()


@pytest.fixture
def client(service: RunningService) -> Iterator[UnifiedScheduler]:
    with UnifiedScheduler(address=service.address, token=service.token) as scheduler:
        yield scheduler


def test_calls_run_in_order_and_their_values_and_errors_come_back(client: UnifiedScheduler) -> None:
    actor = client.submit_actor(Counter, kwargs={"start": 10})
    assert actor.state is rmcs.TaskState.RUNNING
    calls = [actor.add.remote(number) for number in range(100)]
    assert [call.result(60) for call in calls] == [10 + sum(range(number + 1)) for number in range(100)]
    with pytest.raises(ValueError, match="no such thing"):
        actor.boom.remote().result(30)
    assert len(actor.large.remote(300_000).result(30)) == 300_000
    assert actor.read.remote().result(30) == 10 + sum(range(100))
    (row,) = [row for row in client.list_actors() if row["id"] == actor.id]
    assert (row["state"], row["class"]) == ("RUNNING", "Counter")
    assert actor.explain()["state"] == "RUNNING"
    actor.kill()
    with pytest.raises(rmcs.ActorDiedError):
        actor.read.remote().result(30)


def test_values_and_actors_as_arguments(client: UnifiedScheduler) -> None:
    one = client.submit_actor(Counter, kwargs={"start": 1}, preferred_cluster="mac", fallback="wait")
    two = client.submit_actor_async(Counter, kwargs={"start": 2}, preferred_cluster="mac", fallback="wait")
    value = client.submit_task_async(lambda: 5)
    assert one.add.remote(value).result(60) == 6
    assert two.add.remote(one.add.remote(4)).result(60) == 12
    assert client.submit_task(lambda number: number + 1, (two.read.remote(),)) == 13
    assert one.add.remote(client.put(90)).result(30) == 100
    assert client.submit_task(lambda actor: actor.read.remote().result(20), (one,)) == 100
    assert two.plus.remote(one).result(30) == 112


def test_handles_inside_of_arguments_arrive_as_handles(client: UnifiedScheduler) -> None:
    def read(table: dict[str, Any]) -> list[Any]:
        from ray_multicluster_scheduler import get

        return [get(table["handles"]), get(table["counter"].add.remote(1))]

    counter = client.submit_actor(Counter, kwargs={"start": 1})
    handles = [client.submit_task_async(len, ("abc",)), client.put(7), counter.add.remote(1)]
    table = client.put({"handles": handles, "counter": counter})
    assert client.submit_task_async(read, (table,)).result(60) == [[3, 7, 2], 3]
    counter.kill()


def test_a_constructor_that_raises_is_reported(client: UnifiedScheduler) -> None:
    class Broken:
        def __init__(self) -> None:
            raise LookupError("nothing here")

        def touch(self) -> None: ...

    with pytest.raises(LookupError, match="nothing here"):
        client.submit_actor(Broken)


def test_names_are_the_services(client: UnifiedScheduler, service: RunningService) -> None:
    actor = client.submit_actor(Counter, name="shared", kwargs={"start": 7})
    with UnifiedScheduler(address=service.address, token=service.token) as other:
        found = other.get_actor("shared")
        assert found.id == actor.id
        assert found.add.remote(1).result(30) == 8
        with pytest.raises(rmcs.ConfigurationError, match="There is a living actor 'shared' already"):
            other.submit_actor_async(Counter, name="shared")
        again = other.submit_actor(Counter, name="shared", get_if_exists=True)
        assert again.id == actor.id
    assert actor.read.remote().result(30) == 8, "it is not the other program's"
    actor.kill()
    with pytest.raises(rmcs.UnknownItemError, match="no living actor 'shared'"):
        client.get_actor("shared")
    assert client.submit_actor(Counter, name="shared").read.remote().result(30) == 0


def test_a_detached_one_outlives_its_program_and_the_service(service: RunningService) -> None:
    with UnifiedScheduler(address=service.address, token=service.token) as first:
        first.submit_actor(Counter, name="left", lifetime="detached", kwargs={"start": 3})
    with UnifiedScheduler(address=service.address, token=service.token) as second:
        found = second.get_actor("left")
        assert found.add.remote(1).result(60) == 4
        service.kill()
        service.start()
        assert found.add.remote(1).result(60) == 5
        assert second.get_actor("left").id == found.id
        found.kill()


def test_a_gang_of_actors(client: UnifiedScheduler) -> None:
    pair = client.submit_gang([member(Counter, "", 1), member(Counter, "", 2)])
    assert [actor.add.remote(1).result(60) for actor in pair] == [2, 3]
    assert pair[0].cluster == pair[1].cluster
    pair[0].kill()
    with pytest.raises(rmcs.SchedulerError):
        pair[1].read.remote().result(30)


def test_calls_over_a_restart_run_once(client: UnifiedScheduler, service: RunningService, tmp_path: Path) -> None:
    path = tmp_path / "noted"
    actor = client.submit_actor(Counter, (str(path),))
    assert actor.add.remote(1).result(60) == 1
    under_way = actor.add.remote(2, 4.0)
    behind = actor.add.remote(3)
    until(lambda: "begins 2" in path.read_text() and behind.explain()["code"] == "SENT", 30)
    service.kill()
    while_away = actor.add.remote(4)
    service.start()
    assert under_way.result(60) == 3
    assert behind.result(60) == 6
    assert while_away.result(60) == 10
    assert actor.add.remote(5).result(60) == 15
    assert path.read_text().splitlines() == ["made 0", "add 1", "begins 2", "add 2", "add 3", "add 4", "add 5"]
    assert actor.attempt == 1


_PROGRAM = """
import os, sys
from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.remote import result_poller
result_poller.POLL_S = 1.0  # a question that the killed program asked last counts as a sign of life until its end
class Held:
    def pid(self):
        return os.getpid()
scheduler = UnifiedScheduler(address=sys.argv[1])
actor = scheduler.submit_actor(Held, name="held")
print(actor.pid.remote().result(60), flush=True)
sys.stdin.read()
"""


def test_an_actor_ends_with_its_killed_program(client: UnifiedScheduler, service: RunningService) -> None:
    command = [sys.executable, "-c", _PROGRAM, service.address]
    environ = {**os.environ, "RMCS_TOKEN": service.token}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert int(program.stdout.readline()) > 0
        actor = client.get_actor("held")
        program.kill()
    assert actor._item.wait(120) is not None
    assert actor.state is rmcs.TaskState.CANCELLED
    # As program_lease_s says.
    assert "20 s" in actor.explain()["sentence"]

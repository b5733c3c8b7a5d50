"""Actors that tasks and actors create inside a cluster and return to the program, which calls them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import ray_multicluster_scheduler as rmcs
from ray_multicluster_scheduler import UnifiedScheduler, get, remote, submit_actor, submit_task, submit_task_async
from tests.support.eventually import until
from tests.support.running_service import RunningService


def classes() -> tuple[Any, Any]:
    class Child:
        def __init__(self, start: int = 0) -> None:
            self.value = start

        def add(self, number: int = 1) -> int:
            self.value += number
            return self.value

        def fail(self) -> None:
            raise KeyError("of the child")

        @rmcs.method(num_returns=2)
        def two(self) -> tuple[int, int]:
            return self.value, -self.value

        def kill(self) -> str:
            return "hides the attribute"

    child = remote(num_cpus=0)(Child)

    class Creator:
        def make(self, start: int = 0) -> Any:
            self.child = child.remote(start)
            return self.child

        def make_many(self) -> dict[str, Any]:
            return {"many": [child.remote(number) for number in range(3)]}

        def add_to(self, given: Any, number: int) -> int:
            from ray_multicluster_scheduler import get

            return int(get(given.add.remote(number)))

        def holds(self, given: Any) -> bool:
            return bool(given == self.child)

    return Creator, child


@pytest.fixture
def creator(scheduler: UnifiedScheduler) -> Iterator[Any]:
    actor = submit_actor(classes()[0])
    yield actor
    actor.kill()


def test_a_method_returns_and_takes_an_actor_that_it_made(creator: Any) -> None:
    child = get(creator.make.remote(10))
    assert isinstance(child, rmcs.ActorHandle)
    assert child.cluster == creator.cluster
    assert get([child.add.remote() for _ in range(20)]) == list(range(11, 31))
    with pytest.raises(KeyError, match="of the child"):
        get(child.fail.remote())
    first, second = child.two.remote()
    assert get([first, second]) == [30, -30]
    assert get(creator.holds.remote(child)) is True
    assert get(creator.add_to.remote(child, 5)) == 35
    assert get(child.add.remote(submit_task_async(lambda: 7))) == 42, "the value of a handle"
    assert get(child.kill.remote()) == "hides the attribute"
    assert get(creator.make.remote(1)) != child


def test_a_task_takes_it_and_runs_on_its_cluster(creator: Any) -> None:
    child = get(creator.make.remote())

    def use(given: dict[str, Any]) -> tuple[int, str]:
        from ray_multicluster_scheduler import current, get

        return get(given["child"].add.remote(3)), current().cluster

    assert [submit_task(use, ({"child": child},)) for _ in range(2)] == [(3, child.cluster), (6, child.cluster)]
    assert get(child.add.remote()) == 7


def test_actors_in_a_dict_and_from_a_task(creator: Any) -> None:
    many = get(creator.make_many.remote())["many"]
    assert get([one.add.remote(10) for one in many]) == [10, 11, 12]
    child_class = classes()[1]
    made = submit_task(lambda: child_class.remote(5))
    assert isinstance(made, rmcs.ActorHandle)
    assert get(made.add.remote()) == 6
    assert made.state is rmcs.TaskState.RUNNING

    async def awaited() -> int:
        await made
        return int(await made.add.remote())

    assert asyncio.run(awaited()) == 7


def test_its_end(creator: Any) -> None:
    child = get(creator.make.remote()).ready(60)
    explained = rmcs.explain(child)
    assert (explained["kind"], explained["parent"], explained["state"]) == ("actor", creator.id, "RUNNING")
    assert "Child" in repr(child)
    rmcs.kill(child)
    with pytest.raises(rmcs.ActorDiedError):
        get(child.add.remote())
    assert child.state is rmcs.TaskState.FAILED
    another = get(creator.make.remote())
    assert get(another.add.remote()) == 1
    creator.kill()
    until(lambda: another.state is rmcs.TaskState.FAILED)
    with pytest.raises(rmcs.ActorDiedError):
        get(another.add.remote())


def test_another_cluster_refuses_it_with_the_reason(scheduler: UnifiedScheduler) -> None:
    creator = submit_actor(classes()[0], preferred_cluster="mac", fallback="wait")
    result = creator.make.remote()
    result.result(60)
    elsewhere = {"preferred_cluster": "linux", "fallback": "wait"}
    with pytest.raises(rmcs.TaskSubmissionError, match="was created inside cluster 'mac'"):
        remote(lambda given: None).options(**elsewhere).remote(result).result(60)
    creator.kill()


def test_it_is_called_while_its_cluster_is_full(fleet: Any, tmp_path: Path) -> None:
    """The tasks that fill the cluster wait for what the program does after the call."""
    released = tmp_path / "released"

    def wait_for(path: str) -> str:
        deadline = time.monotonic() + 240
        while not Path(path).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return "released" if Path(path).exists() else "waited too long"

    whole = yaml.safe_load(Path(fleet.config_path).read_text())
    config = tmp_path / "clusters.yaml"
    config.write_text(yaml.safe_dump({**whole, "settings": {**whole["settings"], "resource_threshold": 0.7}}))
    with UnifiedScheduler(config) as client:
        here: dict[str, Any] = {"preferred_cluster": "mac", "fallback": "wait"}
        child = client.submit_actor(classes()[0], **here).make.remote(10).result(120)
        full = [client.submit_task_async(wait_for, (str(released),), **here) for _ in range(3)]
        until(lambda: [one.state for one in full].count(rmcs.TaskState.RUNNING) == 2, 120)
        assert full[2].explain()["code"] in ("ABOVE_THRESHOLD", "NO_CAPACITY")
        assert child.add.remote(5).result(120) == 15
        released.touch()
        assert [one.result(120) for one in full] == ["released"] * 3


def test_a_taken_name_is_a_value_error_outside_and_inside(scheduler: UnifiedScheduler) -> None:
    creator, child = classes()

    def twice() -> str:
        first = child.options(name="the only one").remote()
        try:
            child.options(name="the only one").remote()
        except ValueError as error:
            return type(error).__name__
        return f"{first} has a namesake"

    assert submit_task(twice) == "ActorNameTakenError"
    first = submit_actor(creator, name="the only one")
    with pytest.raises(ValueError, match="the only one") as caught:
        submit_actor(creator, name="the only one")
    assert isinstance(caught.value, rmcs.exceptions.ActorAlreadyExistsError)
    first.kill()


def test_through_a_service(fleet: Any, tmp_path: Path) -> None:
    with RunningService(Path(fleet.config_path), tmp_path / "state", program_lease_s=20) as service:
        with UnifiedScheduler(address=service.address, token=service.token) as client:
            creator = client.submit_actor(classes()[0])
            child = creator.make.remote(10).result(60)
            assert [call.result(60) for call in [child.add.remote() for _ in range(3)]] == [11, 12, 13]
            with pytest.raises(KeyError, match="of the child"):
                child.fail.remote().result(60)
            assert creator.add_to.remote(child, 5).result(60) == 18
            assert client.submit_task(lambda given: given.cluster, (child,)) == child.cluster
            client.submit_actor(classes()[0], name="the only one")
            with pytest.raises(ValueError, match="the only one"):
                client.submit_actor(classes()[0], name="the only one")
            client.kill(child)
            with pytest.raises(rmcs.ActorDiedError):
                child.add.remote().result(60)
        service.stop()

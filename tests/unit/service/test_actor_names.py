"""Names of actors are the service's: all its programs share them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import ActorNameTakenError, ConfigurationError, UnknownItemError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt
from tests.unit.client_api.actor_plane import Counter
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, an_actor, ready
from tests.unit.service.service_plane import running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def two(service: ActorService) -> Iterator[list[UnifiedScheduler]]:
    schedulers = [UnifiedScheduler(address=service.address) for _ in range(2)]
    schedulers[0].submit_actor_async(Counter).kill()  # what its class needs is looked for once
    until(lambda: service.plane.cancelled)
    service.plane.placed.clear()
    yield schedulers
    for scheduler in schedulers:
        scheduler.shutdown()


def named(actor_id: str, name: str, **described: Any) -> Any:
    return an_actor(actor_id, {"public_name": name, **described})


def take(service: ActorService, actor_id: str, *, get_if_exists: bool = False, **described: Any) -> Any:
    (answer,) = service.plane.accept(SubmitRequest(named(actor_id, "x", **described), (), get_if_exists))
    return answer


def let_ends_wait(service: ActorService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is killed is not over before its cluster says so."""
    ordered: list[CancelAttempt] = []
    monkeypatch.setattr(service.plane, "cancel", ordered.append)


def test_two_programs_that_want_one_get_the_same(service: ActorService, two: list[UnifiedScheduler]) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [
            pool.submit(two[number % 2].submit_actor_async, Counter, name="x", get_if_exists=True)
            for number in range(8)
        ]
        actors = [one.result(20) for one in made]
    assert len({actor.id for actor in actors}) == 1
    assert len({id(actor) for actor in actors}) == 2, "a program has one handle of an actor"
    assert len(service.plane.placed) == 1
    for scheduler, actor in zip(two, actors, strict=False):
        assert scheduler.get_actor("x").id == ready(actor).id


def test_of_two_programs_that_make_one_the_later_is_refused(service: ActorService, two: list[UnifiedScheduler]) -> None:
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(one.submit_actor_async, Counter, name="x") for one in two]
        errors = [one.exception(20) for one in made]
    assert [type(error) for error in errors if error is not None] == [ActorNameTakenError]
    assert len(service.plane.placed) == 1


def test_both_call_it_and_each_has_its_own_answers(service: ActorService, two: list[UnifiedScheduler]) -> None:
    mine = ready(two[0].submit_actor_async(Counter, name="x"))
    theirs = two[1].get_actor("x")
    calls = [mine.add.remote(1), theirs.add.remote(2)]
    service.sent(2)
    for number, call in enumerate(calls):
        service.answer(call.id, number)
    assert [call.result(60) for call in calls] == [0, 1]
    two[1].shutdown()
    assert mine.state is TaskState.RUNNING, "it ends with the program that made it"
    (row,) = [row for row in two[0].list_actors() if row["id"] == mine.id]
    assert row["state"] == "RUNNING"


def test_the_name_of_one_that_was_killed_is_free_at_once(
    service: ActorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_ends_wait(service, monkeypatch)
    first = running(take(service, "a"))
    assert isinstance(take(service, "b"), ConfigurationError)
    service.post("/api/v1/items/a/cancel", {"force": True})
    assert first.outcome is None
    assert service.ask("GET", "/api/v1/actor?name=x")[0] == 404
    assert take(service, "b").id == "b"
    service.on_loop(lambda: service.plane.finish_soon("a"))
    until(first.done)
    assert service.get("/api/v1/actor?name=x")["id"] == "b", "the end of the other one takes nothing from it"


def test_also_after_a_restart(service: ActorService, monkeypatch: pytest.MonkeyPatch) -> None:
    let_ends_wait(service, monkeypatch)
    running(take(service, "a"))
    service.post("/api/v1/items/a/cancel", {"force": True})
    service.restart()
    assert service.ask("GET", "/api/v1/actor?name=x")[0] == 404
    assert take(service, "b").id == "b"


def test_a_living_one_has_its_name_after_a_restart(service: ActorService) -> None:
    running(take(service, "a"))
    service.restart()
    assert service.get("/api/v1/actor?name=x")["id"] == "a"
    assert isinstance(take(service, "b"), ConfigurationError)
    assert take(service, "b", get_if_exists=True).id == "a"


def test_one_that_is_over_gives_its_name_back(service: ActorService) -> None:
    first = running(take(service, "a"))
    service.on_loop(lambda: service.plane.finish_soon("a"))
    until(first.done)
    second = take(service, "b")
    assert isinstance(second, Item)
    names = service.plane.runtime.actor_names
    assert (names.living("x"), names._killed) == (second, {})


def test_a_detached_actor_of_another_program_is_found_once(service: ActorService, two: list[UnifiedScheduler]) -> None:
    service.detached.add("left")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: two[number % 2].get_actor("left").id, range(4)))
    assert len(set(found)) == 1
    with pytest.raises(ConfigurationError, match="living actor 'left' already"):
        two[0].submit_actor_async(Counter, name="left", lifetime="detached")
    with pytest.raises(UnknownItemError, match="no living actor 'never'"):
        two[0].get_actor("never")


def test_locks_of_names_do_not_stay(service: ActorService) -> None:
    for number in range(10):
        service.ask("GET", f"/api/v1/actor?name={number}")
    assert len(service.plane.runtime.actor_names._locks) == 0

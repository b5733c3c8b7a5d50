"""What belongs to a program ends with it, also when it could not say so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.runtime.service.program_leases import ProgramLeases
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, an_actor
from tests.unit.service.http_service import body
from tests.unit.service.service_plane import running

LEASE_S = 100.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ActorService]:
    with ActorService(tmp_path / "state", program_lease_s=LEASE_S) as service:
        yield service


class Programs:
    """The leases of a service, looked at when a test says so."""

    def __init__(self, service: ActorService) -> None:
        self.service, self.received = service, dict[str, float | None]()
        runtime = service.plane.runtime
        self.leases = ProgramLeases(runtime, lambda program: self.received.get(program))  # noqa: PLW0108 - it changes
        runtime.call_and_wait(self.leases.begin)

    def now(self) -> float:
        return self.service.plane.runtime.call_and_wait(self.service.plane.runtime._loop.time)

    def actor(self, actor_id: str, program: str | None, since: float = 0.0) -> None:
        """One that is held since so many seconds ago."""
        item = running(self.service.plane.taken(an_actor(actor_id, program=program)))

        def hold() -> None:
            self.leases.hold(item)
            if program is not None:
                self.leases._since[program] -= since

        self.service.on_loop(hold)

    def look(self) -> None:
        self.service.on_loop(self.leases._check)

    def state(self, actor_id: str) -> TaskState:
        item = self.service.plane.find_item(actor_id)
        assert item is not None
        return item.state


def test_actors_of_a_program_that_is_gone_end(service: ActorService) -> None:
    programs = Programs(service)
    programs.actor("gone", "p1", LEASE_S)
    programs.actor("new", "p2", LEASE_S / 2)
    programs.actor("waits", "p3", LEASE_S)
    programs.actor("lately", "p4", LEASE_S)
    programs.actor("nobodys", None)
    programs.received.update(p3=math.inf, p4=programs.now() - LEASE_S / 2)
    programs.look()
    until(lambda: programs.state("gone") is TaskState.CANCELLED)
    for alive in ("new", "waits", "lately", "nobodys"):
        assert programs.state(alive) is TaskState.RUNNING, alive
    assert set(programs.leases._items) == {"p2", "p3", "p4"}
    assert set(programs.leases._since) == {"p2", "p3", "p4"}


def test_who_comes_back_in_time_keeps_them(service: ActorService) -> None:
    programs = Programs(service)
    programs.actor("a", "p", LEASE_S)
    programs.received["p"] = programs.now()
    programs.look()
    assert programs.state("a") is TaskState.RUNNING
    programs.received["p"] = programs.now() - LEASE_S
    programs.look()
    until(lambda: programs.state("a") is TaskState.CANCELLED)


def test_no_owner_is_examined_where_none_has_items(service: ActorService) -> None:
    programs = Programs(service)
    assert programs.leases._timer is None
    programs.actor("a", "p")
    assert programs.leases._timer is not None
    service.post("/api/v1/items/a/cancel", {"force": True})
    until(lambda: programs.state("a") is TaskState.CANCELLED)
    programs.look()
    assert programs.leases._timer is None
    assert not programs.leases._items
    assert not programs.leases._since


def test_what_the_process_before_left_has_a_whole_lease(service: ActorService) -> None:
    Programs(service).actor("a", "p", LEASE_S)
    service.restart()
    programs = Programs(service)
    programs.look()
    assert programs.state("a") is TaskState.RUNNING
    service.on_loop(lambda: programs.leases._since.update(p=programs.leases._since["p"] - LEASE_S))
    programs.look()
    until(lambda: service.plane.cancelled)


@pytest.mark.parametrize("client", [None, "p"])
def test_it_is_held_whichever_way_it_is_submitted(service: ActorService, client: str | None) -> None:
    service.post("/api/v1/items", {**body(an_actor("a", program="p")), "client": client})
    assert list(service.app.state.leases._items) == ["p"]


def test_a_polling_client_is_present(service: ActorService) -> None:
    boxes = service.app.state.mailboxes
    assert boxes.last_poll("p") is None
    service.changes("p", timeout=0)
    received = boxes.last_poll("p")
    assert received is not None
    assert received <= service.plane.runtime.call_and_wait(service.plane.runtime._loop.time)

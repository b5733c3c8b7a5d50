"""Who knows the digest of another user's payload cannot have it run, read or given to an actor: it is not there for
him, in the words for what is nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, a_call, an_actor
from tests.unit.service.service_plane import A, F, a_task

pytestmark = pytest.mark.usefixtures("leak_check")
BYTES = {"Content-Type": "application/octet-stream"}
SECRET, LARGE = b"alice's code", b"alice's data" * 10_000
NOWHERE = digest_of(b"nobody has this")


class Two(ActorService):
    """Alice and Bob submit, and nothing else."""

    def __init__(self, folder: Path, **values: Any) -> None:
        super().__init__(folder, auth="token", **values)
        self.alice = self.token_for("alice", Role.SUBMITTER)
        self.bob = self.token_for("bob", Role.SUBMITTER)

    def put(self, token: str, data: bytes) -> str:
        digest = digest_of(data)
        assert self.ask("PUT", f"/api/v1/blobs/{digest}", data=data, token=token, headers=BYTES)[0] == 200
        return digest

    def send(self, token: str, task: TaskDescription, *brought: bytes, **values: Any) -> tuple[int, Any]:
        """With these payloads of its own, and no others."""
        blobs = wire.bytes_to_wire({digest_of(data): data for data in brought})
        return self.ask("POST", "/api/v1/items", {"task": task.to_dict(), "blobs": blobs, **values}, token=token)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Two]:
    with Two(tmp_path / "state") as one:
        yield one


def _as_code(digest: str) -> tuple[TaskDescription, dict[str, Any]]:
    return a_task("t", 0, function_digest=digest), {}


def _as_arguments(digest: str) -> tuple[TaskDescription, dict[str, Any]]:
    return a_task("t", 0, arguments_digest=digest), {}


def _as_object(digest: str) -> tuple[TaskDescription, dict[str, Any]]:
    return a_task("t", 0), {"objects": [digest]}


def _as_package(digest: str) -> tuple[TaskDescription, dict[str, Any]]:
    return a_task("t", 0, runtime_env={"working_dir": f"rmcs://{digest}/x.zip"}), {}


WAYS = (_as_code, _as_arguments, _as_object, _as_package)
Way = Callable[[str], tuple[TaskDescription, dict[str, Any]]]


@pytest.mark.parametrize("data", [SECRET, LARGE])
@pytest.mark.parametrize("way", WAYS)
def test_a_digest_of_another_user_is_answered_like_an_unknown_one(service: Two, way: Way, data: bytes) -> None:
    digest = service.put(service.alice, data)
    for again in (False, True):
        task, more = way(NOWHERE)
        status, unknown = service.send(service.bob, task, b"f", b"a", **more)
        assert (status, unknown["missing"]) == (424, [NOWHERE])
        task, more = way(digest)
        status, refused = service.send(service.bob, task, b"f", b"a", **more)
        assert (status, refused) == (424, _renamed(unknown, digest))
        assert service.plane.store.item("t") is None
        if not again:
            service.restart()
    service.put(service.bob, data)  # the same content, once more
    task, more = way(digest)
    assert service.send(service.bob, task, b"f", b"a", **more)[0] == 200


def _renamed(output: dict[str, Any], digest: str) -> dict[str, Any]:
    return {
        key: value.replace(NOWHERE, digest) if isinstance(value, str) else [digest] if key == "missing" else value
        for key, value in output.items()
    }


@pytest.mark.parametrize("data", [SECRET, LARGE])
def test_each_user_who_put_it_may_name_it(service: Two, data: bytes) -> None:
    digest = service.put(service.alice, data)
    assert service.put(service.bob, data) == digest
    for token, name in ((service.alice, "a1"), (service.bob, "b1")):
        service.restart()
        task = a_task(name, 0, function_digest=digest)
        assert service.send(token, task, b"a")[0] == 200
    assert service.plane.store.blob(digest) == data


def test_own_payload_may_be_referenced_after_restart(service: Two) -> None:
    assert service.send(service.alice, a_task("first", 0), b"f", b"a")[0] == 200
    assert service.send(service.alice, a_task("second", 0))[0] == 200
    assert service.send(service.bob, a_task("third", 0))[1]["missing"] == [F, A]
    service.restart()
    assert service.send(service.alice, a_task("fourth", 0))[0] == 200
    assert service.send(service.bob, a_task("fifth", 0))[1]["missing"] == [F, A]
    assert service.send(service.bob, a_task("sixth", 0), b"f", b"a")[0] == 200
    assert service.send(service.bob, a_task("seventh", 0))[0] == 200


def test_a_user_who_steers_all_work_may_name_all_payloads(service: Two) -> None:
    digest = service.put(service.alice, SECRET)
    both = service.token_for("oscar", Role.SUBMITTER, Role.OPERATOR)
    assert service.send(both, a_task("t", 0, function_digest=digest), b"a")[0] == 200


def test_who_put_what_is_forgotten_with_it(service: Two) -> None:
    digest, store = service.put(service.alice, SECRET), service.plane.store
    for _ in range(3):
        store.delete_unused_blobs()
    assert not store.owns_blob("alice", digest)
    service.restart()
    service.put(service.bob, SECRET)
    assert service.send(service.alice, a_task("t", 0, function_digest=digest), b"a")[1]["missing"] == [digest]


def test_arguments_of_calls_are_ones_own_too(service: Two) -> None:
    digest = service.put(service.alice, SECRET)
    assert service.send(service.bob, an_actor("actor"), b"f", b"a")[0] == 200
    until(lambda: service.get("/api/v1/items/actor")["state"] == "RUNNING")
    for number, (named, objects) in enumerate(((digest, []), (A, [digest]), (NOWHERE, []), (A, [NOWHERE]))):
        call = {**a_call(f"c{number}", "actor"), "arguments": named, "objects": objects}
        output = {"client": "bobs", "calls": [call], "blobs": wire.bytes_to_wire({A: b"a"})}
        status, answer = service.ask("POST", "/api/v1/calls", output, token=service.bob)
        missing = [digest if digest in (named, *objects) else NOWHERE]
        assert (status, answer["calls"][0]["problem"]["missing"]) == (200, missing)
    service.ask("POST", "/api/v1/items/actor/cancel", {}, token=service.bob)


def test_programs_of_two_users_do_not_notice(tmp_path: Path) -> None:
    with Two(tmp_path / "state", works=True) as service:
        for token in (service.alice, service.bob, service.alice):
            with UnifiedScheduler(address=service.address, token=token) as scheduler:
                data = scheduler.put(LARGE)
                assert scheduler.get([scheduler.submit_task_async(len, (data,)) for _ in range(3)]) == [len(LARGE)] * 3

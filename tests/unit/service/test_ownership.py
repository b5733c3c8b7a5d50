"""A submitter who is nothing else sees and steers what is its user's own, and is not told of anything else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import ConfigurationError, NotAllowedError, UnknownItemError
from ray_multicluster_scheduler.common.object_argument import ACTOR, RESULT
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, Settings
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.service.stored_arguments import PayloadOwnership, RecentPairs
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import WideItemReservation
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, a_call, an_actor
from tests.unit.service.http_service import body
from tests.unit.service.service_plane import a_job, a_task

CEILING = {"owners": {"alice": {"max_priority": 10}}}


class Tokens(ActorService):
    """Alice and Bob submit, and nothing else; each has an item of his own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, auth="token", **CEILING)
        self.alice = self.token_for("alice", Role.SUBMITTER)
        self.bob = self.token_for("bob", Role.SUBMITTER)
        self.viewer = self.token_for("vera", Role.VIEWER)
        self.operator = self.token_for("otto", Role.OPERATOR)

    def send(self, token: str, task: Any, **values: Any) -> tuple[int, Any]:
        return self.ask("POST", "/api/v1/items", body(task, **values), token=token)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    with Tokens(tmp_path_factory.mktemp("own") / "state") as one:
        for owner in ("alice", "bob"):
            token = one.alice if owner == "alice" else one.bob
            for task in (a_task(f"{owner}-t", 0), a_job(f"{owner}-j"), an_actor(f"{owner}-a", {"public_name": owner})):
                assert one.send(token, task)[0] == 200
        until(lambda: one.get("/api/v1/items/bob-t")["state"] == "RUNNING")
        yield one


def test_the_owner_is_the_tokens_user(service: Tokens) -> None:
    assert service.get("/api/v1/items/alice-t")["owner"] == "alice"
    status, output = service.send(service.alice, a_task("x", owner="bob"))
    assert (status, output["error"]) == (403, "NotAllowedError")
    assert "The owner of x is bob, but the token belongs to alice." in output["message"]
    both = service.token_for("oscar", Role.SUBMITTER, Role.OPERATOR)
    assert service.send(both, a_task("for-bob", 0, owner="bob"))[0] == 200
    assert service.get("/api/v1/items/for-bob")["owner"] == "bob"


@pytest.mark.parametrize("path", ["", "/explain", "/logs", "/logs?follow=true"])
def test_others_are_not_seen(service: Tokens, path: str) -> None:
    if "follow" not in path:
        assert service.ask("GET", f"/api/v1/items/alice-t{path}", token=service.alice)[0] == 200
    status, output = service.ask("GET", f"/api/v1/items/alice-t{path}", token=service.bob)
    none = service.ask("GET", f"/api/v1/items/nobodys{path}", token=service.bob)[1]
    assert status == 404
    assert str(output).replace("alice-t", "nobodys") == str(none), "as one that nobody has"


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "priority"])
def test_others_are_not_steered(service: Tokens, verb: str) -> None:
    output = {"priority": 1}
    assert service.ask("POST", f"/api/v1/items/alice-t/{verb}", output, token=service.bob)[0] == 404
    assert service.ask("POST", f"/api/v1/items/alice-t/{verb}", output, token=service.viewer)[0] == 403
    assert service.ask("GET", "/api/v1/items/alice-t/result", token=service.bob)[0] == 404
    assert service.get("/api/v1/items/alice-t")["state"] == "RUNNING"


def test_lists_have_only_ones_own(service: Tokens) -> None:
    def ids(path: str, key: str, name: str, token: str) -> set[str]:
        status, output = service.ask("GET", path, token=token)
        assert status == 200
        return {one[name] for one in output[key]}

    assert ids("/api/v1/items", "items", "id", service.alice) >= {"alice-t", "alice-j", "alice-a"}
    for path, key, name in (
        ("/api/v1/items", "items", "id"),
        ("/api/v1/items?kind=job", "items", "id"),
        ("/api/v1/jobs", "jobs", "job_id"),
        ("/api/v1/actors", "actors", "id"),
    ):
        mine = ids(path, key, name, service.alice)
        assert mine
        assert all(one.startswith("alice") for one in mine)
        assert any(one.startswith("bob") for one in ids(path, key, name, service.viewer))
    assert service.ask("GET", "/api/v1/items?owner=bob", token=service.alice)[0] == 403
    assert service.ask("GET", "/api/v1/jobs/bob-j", token=service.alice)[0] == 404
    assert service.ask("GET", "/api/v1/jobs/alice-j", token=service.alice)[0] == 200


def test_the_trace_has_only_ones_own(service: Tokens) -> None:
    for owner, token in (("alice", service.alice), ("bob", service.bob)):
        assert service.send(token, a_task(f"over-{owner}", 0))[0] == 200
        item = service.plane.find_item(f"over-{owner}")
        assert item is not None
        until(lambda item=item: item.cluster is not None)
        service.plane.finish(item)
    assert b"bob" in service.ask("GET", "/api/v1/trace", token=service.bob)[1]
    assert b"alice" not in service.ask("GET", "/api/v1/trace", token=service.bob)[1]


def test_an_id_of_another_user_is_not_handed_out(service: Tokens) -> None:
    status, output = service.send(service.bob, a_task("alice-t"))
    assert (status, output["message"]) == (403, "alice-t does not belong to bob.")
    assert service.send(service.bob, a_job("alice-t"))[1]["message"] == "alice-t does not belong to bob.", (
        "nor of what kind it is"
    )
    assert service.send(service.alice, a_task("alice-t", 0))[0] == 200


def test_keys_and_contents_are_ones_own(service: Tokens) -> None:
    ids = []
    for token, name in ((service.alice, "k1"), (service.bob, "k2"), (service.bob, "k3")):
        ids.append(service.send(token, a_task(name, 0, name="n", idempotency_key="monday"))[1]["id"])
    assert ids == ["k1", "k2", "k2"]
    ids = []
    for token, name in ((service.alice, "c1"), (service.bob, "c2"), (service.bob, "c3")):
        ids.append(service.send(token, a_task(name, 0, content_key="same"))[1]["id"])
    assert ids == ["c1", "c2", "c2"]


def test_nothing_waits_for_others_or_takes_their_values(service: Tokens) -> None:
    for task, objects in (
        (a_task("w1", after=("alice-t",)), []),
        (a_task("w2"), [f"{RESULT}alice-t"]),
        (a_task("w3"), [f"{ACTOR}alice-a"]),
    ):
        status, output = service.send(service.bob, task, objects=objects)
        assert status == 403, output
        assert "does not belong to bob" in output["message"]
        assert service.plane.store.item(task.id) is None
    assert service.send(service.alice, a_task("w4", after=("alice-t",)))[0] == 200


def test_actors_of_others(service: Tokens) -> None:
    status, output = service.ask("GET", "/api/v1/actor?name=alice", token=service.bob)
    assert (status, "alice-a" in str(output)) == (404, False)
    assert service.ask("GET", "/api/v1/actor?name=alice", token=service.alice)[0] == 200
    assert service.ask("GET", "/api/v1/actor?name=nobody", token=service.bob)[0] == 404
    again = an_actor("again", {"public_name": "alice"})
    for values in ({}, {"get_if_exists": True}):
        status, output = service.send(service.bob, again, **values)
        assert status in (403, 422)
        assert "alice-a" not in str(output)
    adopting = an_actor("adopting", {"public_name": "left", "lifetime": "detached", "adopt": True})
    assert service.send(service.bob, adopting)[0] == 403
    service.detached.add("left")
    left = an_actor("left", {"public_name": "left", "lifetime": "detached"})
    assert service.send(service.bob, left, get_if_exists=True)[0] == 422
    calls = {"client": "c", "calls": [a_call("call-1", "alice-a")]}
    output = service.ask("POST", "/api/v1/calls", calls, token=service.bob)[1]["calls"][0]
    assert output["problem"]["status"] == 404


def test_calls_and_mailboxes_of_others(service: Tokens) -> None:
    blobs = wire.bytes_to_wire({a_call("", "")["arguments"]: pickling.dumps(((), {}))})
    output = {"client": "shared", "calls": [a_call("call-2", "alice-a")], "blobs": blobs}
    mine = service.ask("POST", "/api/v1/calls", output, token=service.alice)[1]
    assert mine["calls"] == [{"id": "call-2"}]
    assert service.ask("GET", "/api/v1/calls/call-2/explain", token=service.bob)[0] == 404
    none, hers = (
        service.ask("POST", f"/api/v1/calls/{one}/cancel", {}, token=service.bob) for one in ("none", "call-2")
    )
    assert (none, hers) == ((200, {"id": "none"}), (200, {"id": "call-2"})), "the answer is the same, and it goes on"
    assert service.ask("GET", "/api/v1/calls/call-2/explain", token=service.alice)[0] == 200
    service.answer("call-2", 5)
    wait = {"client": "shared", "mailbox": mine["mailbox"], "timeout": 0}
    other = service.ask("POST", "/api/v1/wait", wait, token=service.bob)[1]
    assert (other["items"], other["mailbox"] == mine["mailbox"]) == ([], False)
    assert service.ask("GET", "/api/v1/calls/call-2/result?client=shared", token=service.bob)[0] == 404
    reported = service.ask("POST", "/api/v1/wait", {**wait, "timeout": 5}, token=service.alice)[1]["items"]
    assert [one["id"] for one in reported] == ["call-2"]


def test_waiting_for_an_item_of_another_user_is_refused(service: Tokens) -> None:
    output = {"client": "w", "add": ["alice-t", "bob-t", "nobodys"], "timeout": 20}
    reported = service.ask("POST", "/api/v1/wait", output, token=service.bob)[1]
    assert {name: one["error"] for name, one in reported["problems"].items()} == {
        "alice-t": "UnknownItemError",
        "nobodys": "UnknownItemError",
    }
    assert {one["id"] for one in reported["items"]} == {"bob-t"}


def test_who_is_before_ones_own_is_counted_and_not_named(service: Tokens) -> None:
    for token, name in ((service.alice, "wide-alice"), (service.alice, "wide-alice-2"), (service.bob, "wide-bob")):
        assert service.send(token, a_task(name, 8, priority=9 if token == service.alice else 0))[0] == 200
    explain = "/api/v1/items/wide-bob/explain"
    until(lambda: (service.get(explain).get("queue") or {}).get("ahead"))
    reported = service.ask("GET", explain, token=service.bob)[1]
    whole = service.get(explain)["queue"]
    assert reported["queue"]["position"] == whole["position"]
    assert "wide-alice" in str(whole)
    assert {one["id"] for one in reported["queue"]["ahead"]} == {"another owner's item"}
    assert "alice" not in str(reported)
    mine = service.ask("GET", "/api/v1/items/wide-alice-2/explain", token=service.alice)[1]
    assert mine["queue"]["ahead"] == [] or mine["queue"]["ahead"][0]["id"] == "wide-alice"
    for token, name in ((service.alice, "wide-alice"), (service.alice, "wide-alice-2"), (service.bob, "wide-bob")):
        assert service.ask("POST", f"/api/v1/items/{name}/cancel", {}, token=token)[0] == 200


def test_the_holder_of_a_reservation_is_shown_to_those_who_may_know(service: Tokens) -> None:
    state = service.plane.runtime.machine.registry.state("mac")
    state.wide_reservation = WideItemReservation("alice-t", {}, 0.0, None)
    try:
        output = [
            service.ask("GET", "/api/v1/clusters/mac?refresh=false", token=token)[1]["kept_for"]
            for token in (service.alice, service.bob, service.viewer)
        ]
    finally:
        state.wide_reservation = None
    assert output == ["alice-t", "another owner's item", "alice-t"]


def test_viewers_see_everything_but_values(service: Tokens) -> None:
    assert service.send(service.alice, a_task("valued", 0))[0] == 200
    item = service.plane.find_item("valued")
    assert item is not None
    until(lambda: item.cluster is not None)
    service.plane.finish(item, b"the value")
    hers = service.ask("GET", "/api/v1/items/valued", token=service.alice)[1]["outcome"]["result"]
    assert "payload" in hers
    for path, output in (("/api/v1/items/valued", None), ("/api/v1/wait", {"client": "v", "add": ["valued"]})):
        status, reported = service.ask("POST" if output else "GET", path, output, token=service.viewer)
        outcome = (reported["items"][0] if output else reported)["outcome"]
        assert status == 200
        assert (outcome["completion"]["state"], "payload" in outcome["result"]) == ("SUCCEEDED", False)
    assert service.ask("GET", "/api/v1/items/valued/result", token=service.viewer)[0] == 403


def test_an_operator_steers_everybodys_and_it_is_recorded(service: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    assert service.send(service.alice, a_task("steered", 0, start_after=5e9))[0] == 200
    with caplog.at_level(logging.INFO, "ray_multicluster_scheduler"):
        assert service.ask("POST", "/api/v1/items/steered/hold", {"reason": "r"}, token=service.operator)[0] == 200
        assert service.ask("POST", "/api/v1/items/steered/release", {}, token=service.alice)[0] == 200
        assert service.ask("POST", "/api/v1/clusters/mac/cordon", {}, token=service.operator)[0] == 200
        assert service.ask("POST", "/api/v1/clusters/mac/uncordon", {}, token=service.operator)[0] == 200
        assert service.ask("POST", "/api/v1/queue/owner/bob/pause", {}, token=service.operator)[0] == 200
        assert service.ask("POST", "/api/v1/queue/owner/bob/resume", {}, token=service.operator)[0] == 200
    reported = [one.getMessage() for one in caplog.records if "action=" in one.getMessage()]
    assert [one.split(" user=")[0] for one in reported] == [
        "action=hold subject='steered'",
        "action=cordon subject='mac'",
        "action=uncordon subject='mac'",
        "action=pause subject='owner bob'",
        "action=resume subject='owner bob'",
    ], "what an owner does with his own is no action of an operator"
    assert all(f"user='otto' token={service.operator.split('_')[1]}" in one for one in reported)
    assert not any(service.operator.rpartition("_")[2] in one.getMessage() for one in caplog.records)


def test_max_priority_is_the_ceiling_of_an_owner(service: Tokens) -> None:
    status, output = service.send(service.alice, a_task("high", priority=11))
    assert status == 403
    assert "The priority of high is 11, but alice may use at most 10." in output["message"]
    assert service.send(service.alice, a_task("high", 0, priority=10, start_after=5e9))[0] == 200
    assert service.ask("POST", "/api/v1/items/high/priority", {"priority": 11}, token=service.alice)[0] == 403
    assert service.ask("POST", "/api/v1/items/high/priority", {"priority": 12}, token=service.operator)[0] == 200
    assert service.send(service.bob, a_task("higher", 0, priority=99))[0] == 200


def test_a_plan_is_made_for_whom_the_item_would_be(service: Tokens) -> None:
    def plan(token: str, **values: Any) -> tuple[int, Any]:
        task = {"kind": "job", "name": "j", "job": {"entrypoint": "true"}, **values}
        return service.ask("POST", "/api/v1/plan", {"task": task}, token=token)

    assert plan(service.alice, priority=10)[1]["cluster"] == "mac"
    assert plan(service.alice, priority=11)[0] == 403
    assert plan(service.alice, owner="bob")[0] == 403
    service.ask("POST", "/api/v1/queue/owner/alice/pause", {"reason": "audit"}, token=service.operator)
    try:
        output = plan(service.alice)[1]
        assert (output["cluster"], output["code"]) == (None, "OWNER_PAUSED")
        assert plan(service.operator, owner="alice")[1]["code"] == "OWNER_PAUSED"
        assert plan(service.bob)[1]["cluster"] == "mac"
        with UnifiedScheduler(address=service.address, token=service.alice) as scheduler:
            assert scheduler.plan().code == "OWNER_PAUSED", "its owner is the token's user there, too"
    finally:
        service.ask("POST", "/api/v1/queue/owner/alice/resume", {}, token=service.operator)


def test_max_priority_holds_in_a_program_too() -> None:
    mac = ClusterConfig(name="mac", dashboard="http://127.0.0.1:9")
    config = FleetConfig(settings=Settings.model_validate(CEILING), clusters=(mac,))
    with (
        UnifiedScheduler(config) as scheduler,
        pytest.raises(ConfigurationError, match="priority is 11, and alice may request 10"),
    ):
        scheduler.submit_task_async(print, owner="alice", priority=11)
    with (
        UnifiedScheduler(config) as scheduler,
        pytest.raises(ConfigurationError, match="priority is 11, and alice may request 10"),
    ):
        scheduler.plan(owner="alice", priority=11)


def test_a_program_with_a_submitters_token_need_not_say_whose_it_is(service: Tokens) -> None:
    with UnifiedScheduler(address=service.address, token=service.alice) as scheduler:
        handle = scheduler.submit_task_async(print, resource_requirements={"CPU": 0})
        assert handle.accepted(60)
        assert service.get(f"/api/v1/items/{handle.id}")["owner"] == "alice"
        with pytest.raises(UnknownItemError, match="There is no item 'bob-t'"):
            scheduler.handle("bob-t").result(5)
        other = scheduler.submit_task_async(print, owner="bob")
        with pytest.raises(NotAllowedError, match="The owner of .* is bob"):
            other.result(60)
        assert [row["job_id"] for row in scheduler.list_jobs()] == ["alice-j"]


def test_who_follows_output_is_put_out_when_the_token_is_revoked(service: Tokens) -> None:
    token = service.token_for("bob", Role.SUBMITTER)
    with UnifiedScheduler(address=service.address, token=token) as scheduler:
        follow = scheduler._started()[0].output.follow("bob-t", lambda: (1, False))
        service.on_loop(lambda: service.plane.runtime.output.write("bob-t", 1, "stdout", "hello\n"))
        assert next(follow) == "hello\n"
        service.book.revoke(token.split("_")[1])
        assert list(follow) == []


def test_payloads_of_others_are_not_read(service: Tokens) -> None:
    code = b"bob's code" * 100
    digest = digest_of(code)
    path, kind = f"/api/v1/blobs/{digest}", {"Content-Type": "application/octet-stream"}
    assert service.ask("PUT", path, data=code, token=service.bob, headers=kind)[0] == 200
    assert service.ask("GET", path, token=service.bob) == (200, code), "he has put it"
    assert service.ask("GET", path)[0] == 200
    status, output = service.ask("GET", path, token=service.alice)
    assert (status, output["message"]) == (404, f"There is no payload {digest}, or it was deleted.")
    assert (
        service.send(service.bob, a_task("coded", 0, runtime_env={"working_dir": f"rmcs://{digest}/x.zip"}))[0] == 200
    )
    service.plane.runtime.payload_ownership = PayloadOwnership(service.plane.store)  # as after a restart
    assert service.ask("GET", path, token=service.bob)[0] == 200, "an item of his names it"
    assert service.ask("GET", path, token=service.alice)[0] == 404
    item = service.plane.find_item("coded")
    assert item is not None
    until(lambda: item.cluster is not None)
    service.plane.finish(item, b"v" * 200)
    until(lambda: service.plane.store.owns_blob("bob", digest_of(b"v" * 200)))
    assert service.ask("GET", f"/api/v1/blobs/{digest_of(b'v' * 200)}", token=service.bob)[0] == 200
    assert service.ask("GET", f"/api/v1/blobs/{digest_of(b'v' * 200)}", token=service.alice)[0] == 404


def test_who_put_what_is_not_remembered_for_ever() -> None:
    put = RecentPairs(most=2)
    for digest in ("a", "b", "a", "c"):
        put.note("bob", digest)
    assert [put.has("bob", digest) for digest in "abc"] == [True, False, True]
    assert not put.has("alice", "a")


@pytest.mark.parametrize("path", ["/api/v1/fleet", "/api/v1/settings"])
def test_limits_of_other_owners_are_not_shown(service: Tokens, path: str) -> None:
    def owners(token: str) -> set[str]:
        return set(service.ask("GET", path, token=token)[1]["settings"]["owners"])

    assert [owners(one) for one in (service.alice, service.bob)] == [{"alice"}, set()]
    assert [owners(one) for one in (service.viewer, service.operator)] == [{"alice"}, {"alice"}]

"""A gang on the wire: one entry of CALLS for all members, what they share once, and one answer."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import (
    CallRecord,
    GangSpec,
    SharedObjectCache,
    record_from,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.gang_attempt import GangAttempt
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import BIG_BYTES
from ray_multicluster_scheduler.scheduler.connection.links.call_sender import (
    Attachments,
    argument_bytes,
    call_entry,
    shared_blobs,
)
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import MethodCall, SharedObject
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import PendingCalls
from tests.support.bare_link import method
from tests.support.gangs import gang, part

SHARED = SharedObject("shared", b"value")


def kept() -> SharedObjectCache:
    return SharedObjectCache(100, 1_000_000)


def arrived(call: Any, known: Any = ()) -> CallRecord | None:
    blobs = Attachments(known)
    return record_from(call_entry(call, blobs), blobs.data, kept(), kept())


class TestTheCall:
    def test_all_of_each_member_arrives(self) -> None:
        call = gang(
            "g", part(len, "a", objects=[SHARED]), part(sum, [1], cpus=2.0, asynchronous=True), runtime_env={"pip": []}
        )
        record = arrived(call)
        assert record is not None
        assert record.key == ("g", 1)
        assert record.gang is not None
        assert (record.gang.strategy, record.gang.of, record.resources) == ("PACK", "task", {"CPU": 3.0})
        first, second = record.gang.members
        assert (first.key, first.member, first.gang_key, first.name) == (("g.0", 1), 0, ("g", 1), "len")
        assert pickling.loads(second.arguments) == (([1],), {})
        assert (second.resources, second.asynchronous, first.asynchronous) == ({"CPU": 2.0}, True, False)
        assert [len(one.objects) for one in record.gang.members] == [1, 0]
        assert first.output_key == ("g", 1), "what it prints is the gang's"

    def test_shared_functions_of_members_are_sent_once(self) -> None:
        call = gang("g", *(part(len, "a", objects=[SHARED]) for _ in range(3)))
        blobs = Attachments(())
        call_entry(call, blobs)
        assert len(blobs.data) == 3 + 2, "three arguments, one function, one object"
        assert len(list(shared_blobs(call))) == 6
        assert argument_bytes(call) == 3 * len(pickling.dumps((("a",), {})))

    def test_an_incomplete_gang_is_requested_again(self) -> None:
        call = gang("g", part(len, "a"), part(sum, "a"))
        missing = [need for need, _ in shared_blobs(call)][1]
        assert arrived(call, {missing}) is None

    def test_homes_and_environment_are_all_members(self) -> None:
        call = gang("g", part(len, "a"), part(len, "b"), runtime_env={"pip": ["x"]}, homes=["/a"], target_home="/b")
        record = arrived(call)
        assert record is not None
        assert record.gang is not None
        assert {(repr(one.runtime_env), repr(one.homes)) for one in record.gang.members} == {
            ("{'pip': ['x']}", "(['/a'], '/b')")
        }


def test_output_of_a_members_method_belongs_to_the_gang() -> None:
    owed = PendingCalls()
    owed.add(method("m", "a", "f", 0))
    plain = method("n", "g.1", "f", 0, attempt=2)
    owed.add(type(plain)(**{**_fields(plain), "method": MethodCall("g.1", 2, "f", 0, "g")}))
    (_, of_actor), (_, of_member) = owed.items()
    assert (of_actor.actor, of_actor.output_owner) == (("a", 1), ("a", 1))
    assert (of_member.actor, of_member.output_owner) == (("g.1", 2), ("g", 2))


def _fields(call: Any) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__dataclass_fields__}


class TestTheAnswer:
    def life(self, *heads: dict[str, Any] | None, of: str = "task") -> GangAttempt:
        members = [CallRecord(key=(f"g.{at}", 1), name="f", member=at, head=head) for at, head in enumerate(heads)]
        for at, one in enumerate(members):
            one.payload = pickling.dumps(at)
        return GangAttempt(CallRecord(key=("g", 1), gang=GangSpec("PACK", of, members)), members, of)

    def ok(self, at: float = 1.0, **values: Any) -> dict[str, Any]:
        return {"status": "succeeded", "at": at, "node": f"n{at:g}", "took": at, **values}

    def test_success_is_the_list_of_values(self) -> None:
        life = self.life(self.ok(1.0, chunks=2, parts=[("stdout", "a")]), self.ok(2.0, dropped=3, chunks=1))
        life.starts = {0: (1.0, "n1"), 1: (2.0, "n2")}
        head, payload = life.result()
        assert head == {
            "status": "succeeded",
            "took": 2.0,
            "at": 2.0,
            "node": "n1 n2",
            "chunks": 3,
            "dropped": 3,
            "parts": [("stdout", "a")],
        }
        assert pickling.loads(payload or b"") == [0, 1]

    def test_large_values_stay_in_the_object_store(self) -> None:
        life = self.life(self.ok(), self.ok())
        life.members[1].payload, life.members[1].stored_bytes = None, BIG_BYTES + 1
        head, payload = life.result()
        life.record.head, life.record.payload = head, payload
        assert payload is None
        assert life.record.has_stored_result
        assert life.record.stored_bytes > BIG_BYTES

    def test_the_first_failure_counts_whatever_became_of_the_others(self) -> None:
        bad = {"status": "failed", "failure": "user", "error_type": "E", "message": "E: no", "at": 1.0, "node": "n"}
        life = self.life(self.ok(), bad, {"status": "cancelled"})
        life.first_ended = life.members[1]
        life.starts = {1: (1.0, "n")}
        head, payload = life.result()
        assert head == {
            "status": "failed",
            "failure": "user",
            "error_type": "E",
            "message": "member 1 (f) failed: E: no",
            "member": 1,
        }, "and no start: not all of them were seen to run"
        assert payload == life.members[1].payload

    def test_cancelled(self) -> None:
        assert self.life(None, None).result() == ({"status": "cancelled"}, b"")
        killed = self.life(self.ok(), {"status": "cancelled", "code": "KILLED"})
        assert killed.result()[0] == {"status": "cancelled", "code": "KILLED"}, "it may have begun"

    def test_cancelled_after_some_members_had_begun(self) -> None:
        life = self.life({"status": "cancelled"}, {"status": "cancelled"})
        life.starts = {1: (1.0, "n")}
        assert life.result()[0] == {"status": "cancelled", "code": "BEGUN"}, "and no start: not all of them were seen"
        done = self.life(self.ok(), {"status": "cancelled"})
        done.starts = {0: (1.0, "n1")}
        assert done.result()[0] == {"status": "cancelled", "code": "BEGUN"}

    def test_a_gang_that_ray_refused(self) -> None:
        life = self.life(None, None)
        life.problem = {"status": "failed", "failure": "permanent", "message": "no such strategy"}
        assert life.result() == (life.problem, b"")

    def test_an_actor_that_exits_ends_the_gang_without_failure(self) -> None:
        life = self.life({"status": "succeeded"}, {"status": "cancelled"}, of="actor")
        life.first_ended = life.members[0]
        head, _ = life.result()
        assert head == {"status": "succeeded", "message": "member 0 (f) left by itself, so the others were ended"}

    def test_a_member_that_was_cancelled_in_its_cluster(self) -> None:
        life = self.life({"status": "cancelled"}, self.ok())
        life.first_ended = life.members[0]
        head, _ = life.result()
        assert (head["status"], head["failure"], head["code"]) == ("failed", "crash", "MEMBER_ENDED")

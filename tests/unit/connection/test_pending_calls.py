"""PendingCalls: each call is held until its one result."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import MethodCall
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import PendingCalls
from tests.support.links import call

T1, T2 = ("t1", 1), ("t2", 1)


def two_calls() -> PendingCalls:
    calls = PendingCalls()
    calls.add(call("t1"))
    calls.add(call("t2"))
    return calls


def test_each_step_is_new_once() -> None:
    calls = two_calls()
    assert [calls.mark_accepted(T1) is not None, calls.mark_accepted(T1)] == [True, None]
    assert [calls.mark_started(T1), calls.mark_started(T1)] == [True, False]
    assert [calls.pop(T1, None) is not None, calls.pop(T1, None)] == [True, None]
    assert [calls.mark_accepted(T1), calls.mark_started(T1), calls.get(T1)] == [None, False, None]


def test_attempts_are_distinct() -> None:
    calls = two_calls()
    calls.add(call("t1", 2))
    assert calls.pop(T1)
    assert ("t1", 2) in calls
    assert T1 not in calls
    assert len(calls) == 2


def test_the_call_is_kept_until_it_was_accepted() -> None:
    calls = two_calls()
    pending = calls.get(T1)
    assert pending is not None
    assert pending.call == call("t1")
    calls.mark_accepted(T1)
    assert pending.call is None
    assert calls.get(("never", 1)) is None


def test_a_method_has_its_actor_and_is_never_reported_as_started() -> None:
    calls = two_calls()
    calls.add(call("m1", method=MethodCall("a1", 3, "f", 0)))
    pending = calls.get(("m1", 1))
    assert pending is not None
    assert pending.actor == ("a1", 3)
    assert not calls.mark_started(("m1", 1))


def test_pop_all_hands_over_everything() -> None:
    calls = two_calls()
    assert [key for key, _ in calls.items()] == [T1, T2]
    pending = calls.get(T2)
    assert pending is not None
    pending.cancelled = True
    assert [(key, pending.cancelled) for key, pending in calls.pop_all()] == [(T1, False), (T2, True)]
    assert calls.pop_all() == []
    assert not calls


def test_a_method_of_the_process_before_is_owed_with_its_actor() -> None:
    calls = two_calls()
    calls.adopt_method(("call-1", 1), ("g.1", 2), ("g", 2))
    pending = calls.get(("call-1", 1))
    assert pending is not None
    assert (pending.call, pending.actor, pending.output_owner, pending.inherited) == (None, ("g.1", 2), ("g", 2), True)
    calls.add(call("call-2", method=MethodCall("a1", 1, "f", 0)))
    calls.adopt_method(("call-2", 1), ("a1", 1), ("a1", 1))
    known = calls.get(("call-2", 1))
    assert known is not None
    assert known.call is not None, "it is ours"

"""What a link owes: each call until its one answer."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import MethodCall
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import PendingCalls
from tests.support.links import call

T1, T2 = ("t1", 1), ("t2", 1)


def owed() -> PendingCalls:
    debts = PendingCalls()
    debts.add(call("t1"))
    debts.add(call("t2"))
    return debts


def test_each_step_is_new_once() -> None:
    debts = owed()
    assert [debts.accepted(T1) is not None, debts.accepted(T1)] == [True, None]
    assert [debts.started(T1), debts.started(T1)] == [True, False]
    assert [debts.settle(T1) is not None, debts.settle(T1)] == [True, None]
    assert [debts.accepted(T1), debts.started(T1), debts.get(T1)] == [None, False, None]


def test_attempts_are_told_apart() -> None:
    debts = owed()
    debts.add(call("t1", 2))
    assert debts.settle(T1)
    assert ("t1", 2) in debts
    assert T1 not in debts
    assert len(debts) == 2


def test_the_call_is_kept_until_it_was_accepted() -> None:
    debts = owed()
    debt = debts.get(T1)
    assert debt is not None
    assert debt.call == call("t1")
    debts.accepted(T1)
    assert debt.call is None
    assert debts.get(("never", 1)) is None


def test_a_method_knows_its_actor_and_is_never_told_as_started() -> None:
    debts = owed()
    debts.add(call("m1", method=MethodCall("a1", 3, "f", 0)))
    debt = debts.get(("m1", 1))
    assert debt is not None
    assert debt.actor == ("a1", 3)
    assert not debts.started(("m1", 1))


def test_clear_hands_over_everything() -> None:
    debts = owed()
    assert debts.keys() == [T1, T2]
    debt = debts.get(T2)
    assert debt is not None
    debt.cancelled = True
    assert [(key, debt.cancelled) for key, debt in debts.clear()] == [(T1, False), (T2, True)]
    assert debts.clear() == []
    assert not debts


def test_a_method_of_the_process_before_is_owed_with_its_actor() -> None:
    debts = owed()
    debts.adopt_method(("call-1", 1), ("g.1", 2), ("g", 2))
    debt = debts.get(("call-1", 1))
    assert debt is not None
    assert (debt.call, debt.actor, debt.output_owner, debt.of_before) == (None, ("g.1", 2), ("g", 2), True)
    debts.add(call("call-2", method=MethodCall("a1", 1, "f", 0)))
    debts.adopt_method(("call-2", 1), ("a1", 1), ("a1", 1))
    known = debts.get(("call-2", 1))
    assert known is not None
    assert known.call is not None, "it is ours"

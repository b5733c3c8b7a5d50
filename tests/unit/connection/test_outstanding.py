"""What a link owes: each call until its one answer."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.connection.outstanding import Outstanding
from tests.support.links import call

T1, T2 = ("t1", 1), ("t2", 1)


def owed() -> Outstanding:
    debts = Outstanding()
    debts.add(call("t1"))
    debts.add(call("t2"))
    return debts


def test_each_step_is_new_once() -> None:
    debts = owed()
    assert [debts.accepted(T1), debts.accepted(T1)] == [True, False]
    assert [debts.started(T1), debts.started(T1)] == [True, False]
    assert [debts.settle(T1), debts.settle(T1)] == [True, False]
    assert [debts.accepted(T1), debts.started(T1), debts.want_cancel(T1, True)] == [False, False, False]


def test_attempts_are_told_apart() -> None:
    debts = owed()
    debts.add(call("t1", 2))
    assert debts.settle(T1)
    assert ("t1", 2) in debts
    assert T1 not in debts
    assert len(debts) == 2


def test_the_call_is_kept_until_it_was_accepted() -> None:
    debts = owed()
    assert debts.call(T1) == (call("t1"), False)
    debts.accepted(T1)
    assert debts.call(T1) == (None, False)
    assert debts.call(("never", 1)) == (None, False)


def test_a_wish_to_cancel_is_remembered_and_force_stays() -> None:
    debts = owed()
    assert debts.cancel_wanted(T1) is None
    assert debts.want_cancel(T1, True)
    assert debts.want_cancel(T1, False)
    assert debts.cancels() == [(T1, True)]
    assert (debts.cancel_wanted(T1), debts.cancel_wanted(T2)) == (True, None)
    assert debts.call(T1) == (call("t1"), True)


def test_clear_hands_over_everything() -> None:
    debts = owed()
    debts.want_cancel(T2, False)
    assert debts.keys() == [T1, T2]
    assert debts.clear() == [(T1, False), (T2, True)]
    assert debts.clear() == []
    assert not debts

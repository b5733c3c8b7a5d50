"""The order of an actor's methods, over several processes of the control plane."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import (
    CallRecord,
    Method,
    SharedObjectCache,
    record_from,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.method_queue import MethodQueue

ACTOR = ("a1", 1)


def add(turns: MethodQueue, life: int, number: int, **values: Any) -> CallRecord | None:
    """Its record; None if its turn is over."""
    method = Method(ACTOR, "f", number, life)
    record = CallRecord((f"{life}.{number}", 1), method=method, **values)
    return record if turns.add(method, record) else None


def taken(turns: MethodQueue) -> list[str]:
    names = []
    while (record := turns.take()) is not None:
        names.append(record.key[0])
    return names


def test_numbers_decide_whatever_came_first() -> None:
    turns = MethodQueue()
    add(turns, 0, 1)
    assert taken(turns) == []
    add(turns, 0, 0)
    add(turns, 0, 2)
    assert taken(turns) == ["0.0", "0.1", "0.2"]
    assert not turns


def test_a_later_life_begins_at_0_after_the_calls_of_the_earlier_one() -> None:
    turns = MethodQueue()
    for number in (0, 4, 2):
        add(turns, 1, number)
    assert taken(turns) == ["1.0"]
    add(turns, 2, 1)
    assert taken(turns) == ["1.2", "1.4"], "1 and 3 never come; of the new life, 0 will"
    add(turns, 2, 0)
    assert taken(turns) == ["2.0", "2.1"]


def test_several_lives_may_wait_for_one_another() -> None:
    turns = MethodQueue()
    for life, number in ((1, 3), (3, 1), (4, 0)):
        add(turns, life, number)
    assert [record.key[0] for record in turns.clear()] == ["1.3", "3.1", "4.0"]
    assert not turns
    for life, number in ((5, 3), (6, 1), (7, 0)):
        add(turns, life, number)
    assert taken(turns) == ["5.3", "6.1", "7.0"]


def test_a_late_call_of_an_older_life_has_no_turn() -> None:
    turns = MethodQueue()
    add(turns, 2, 0)
    assert add(turns, 1, 0) is None
    assert add(turns, 0, 5) is None
    assert taken(turns) == ["2.0"]
    assert add(turns, 2, 0) is None, "its number is used"
    assert not turns


def test_a_call_that_is_being_stored_blocks_later_ones_in_every_life() -> None:
    turns = MethodQueue()
    large = add(turns, 1, 1, being_stored=True)
    add(turns, 1, 2)
    larger = add(turns, 2, 0, being_stored=True)
    assert large is not None
    assert larger is not None
    assert taken(turns) == []
    large.being_stored = False
    assert taken(turns) == ["1.1", "1.2"]
    larger.being_stored = False
    assert taken(turns) == ["2.0"]


def test_a_call_whose_sender_is_gone_does_not_wait_for_those_that_never_came() -> None:
    turns = MethodQueue()
    for number in (1, 3, 6):
        add(turns, 1, number)
    turns.skip_to(Method(ACTOR, "f", 3, 1))
    assert taken(turns) == ["1.1", "1.3"]
    turns.skip_to(Method(ACTOR, "f", 2, 1))  # it was taken
    assert taken(turns) == []
    add(turns, 2, 1)
    assert taken(turns) == ["1.6"]
    turns.skip_to(Method(ACTOR, "f", 5, 1))  # of a life that is over
    add(turns, 2, 0)
    assert taken(turns) == ["2.0", "2.1"]


def test_the_life_is_read_from_the_message_and_defaults_to_0() -> None:
    kept = SharedObjectCache(1, 1)
    head: dict[str, Any] = {"id": "c", "attempt": 1, "method": ["a1", 1, "f", 7], "cancelled": True}
    for entry, life in ((head, 0), ({**head, "life": 3}, 3)):
        record = record_from(entry, [], kept, kept)
        assert record is not None
        assert record.method == Method(ACTOR, "f", 7, life)

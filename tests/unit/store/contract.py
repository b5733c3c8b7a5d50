"""What any store has to do: a class of tests to be run against each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait

import pytest

from ray_multicluster_scheduler.common.exception import StoreError, StoreFullError, TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store import (
    Change,
    EventRecord,
    FleetState,
    ItemQuery,
    ItemStatus,
    LogEntry,
    NewItem,
    OperationRecord,
    Outcome,
    OutputRecord,
    ServingStatus,
    ServingTask,
    Step,
    Store,
    StoredDecision,
)

Open = Callable[..., Store]
"""Opens the same store again each time; with limits, if they are given."""

PENDING, QUEUED, SUCCEEDED = TaskState.PENDING, TaskState.QUEUED, TaskState.SUCCEEDED


def item(number: int, **values: object) -> NewItem:
    given = {"kind": "task", "name": f"n{number}", "owner": "ann", "submitted_at": 100.0 + number}
    return NewItem(id=f"t{number}", number=number, description=b"{}", **{**given, **values})  # type: ignore[arg-type]


def accepted(number: int, **values: object) -> Change:
    new = item(number, **values)
    now = ItemStatus(new.id, PENDING)
    return Change([new], {new.id: now}, [Step(new.id, 1, PENDING, 0, new.submitted_at, "SUBMITTED", "was submitted")])


def ended(number: int, at: float, step: int = 2) -> Change:
    name = f"t{number}"
    now = ItemStatus(name, SUCCEEDED, 1, "a", 7, 0, at, is_open=False, rest=b'{"x": 1}')
    return Change([], {name: now}, [Step(name, step, SUCCEEDED, 1, at, "DONE", "is over", "a")])


def numbers(store: Store) -> list[int]:
    return [one.new.number for one in store.open_items()]


class StoreContract:
    """The fixture ``open_store`` is the subclass's."""

    def test_written_items_survive_reopening(self, open_store: Open) -> None:
        store = open_store()
        decision = StoredDecision("t1", 1, 101.0, "a", b'{"why": "free"}')
        change = accepted(1, blobs=("d2", "d1"), key="mine")
        change.add(Change([], {"t1": ItemStatus("t1", QUEUED, 1, "a", 5, 3, None, rest=b'{"k": 2}')}))
        change.entries.append(Step("t1", 2, QUEUED, 1, 101.5, "FULL", "waits — für einen Platz", "a"))
        change.entries.append(decision)
        change.outcomes.append(Outcome("t1", 1, b"{}", "d3"))
        change.fleet = FleetState({"a": b"cordoned"}, {"ann": b"paused"})
        change.next_fence = 6
        change.settings = {"agent:a": b"1", "agent:b": b"2", "tls": b"3"}
        assert store.write(change).result() == store.last_event_number == 3
        store.close()
        store = open_store()
        found = store.item("t1")
        assert found is not None
        assert found.new == item(1, blobs=("d2", "d1"), key="mine")
        assert found.status == ItemStatus("t1", QUEUED, 1, "a", 5, 3, None, rest=b'{"k": 2}')
        assert [one.new.id for one in store.open_items()] == ["t1"]
        assert store.steps("t1") == [one for one in change.entries if isinstance(one, Step)]
        assert store.decisions("t1") == [decision]
        assert store.outcome("t1") == Outcome("t1", 1, b"{}", "d3")
        assert store.fleet() == change.fleet
        assert store.id_by_key("ann", "mine") == "t1"
        assert store.settings("agent:") == {"agent:a": b"1", "agent:b": b"2"}
        assert (store.next_fence, store.next_number) == (6, 2)

    def test_a_priority_may_have_a_fraction(self, open_store: Open) -> None:
        store = open_store()
        for number, priority in enumerate((2.5, -0.25, 3, 3.0), 1):
            change = accepted(number)
            change.add(Change([], {f"t{number}": ItemStatus(f"t{number}", QUEUED, priority=priority)}))
            store.write(change).result()
        store.close()
        found = [one.status.priority for one in open_store().open_items()]
        assert str(found) == "[2.5, -0.25, 3, 3]"

    def test_unknown_items_are_not_found(self, open_store: Open) -> None:
        store = open_store()
        assert store.item("x") is None
        assert store.outcome("x") is None
        assert store.blob("x") is None
        assert (store.steps("x"), store.decisions("x")) == ([], [])
        assert not store.expired("x")
        assert (store.next_fence, store.next_number) == (1, 1)

    def test_one_that_is_over_is_forgotten_at_once(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1)).result()
        assert not store.forget("t1"), "it is not over"
        store.write(ended(1, 200.0)).result()
        assert not store.forget("t1", ["t1"]), "it is needed"
        assert store.forget("t1")
        assert store.item("t1") is None
        assert store.expired("t1")
        assert store.steps("t1") == []
        assert not store.forget("t1")
        assert not store.forget("never")

    def test_each_commit_reports_its_duration(self, open_store: Open) -> None:
        store, took = open_store(), list[float]()
        store.on_commit(took.append)
        store.write(accepted(1)).result()
        assert len(took) == 1
        assert 0 < took[0] < 60

    def test_free_space(self, open_store: Open) -> None:
        store = open_store()
        before = store.usage()
        assert before.free_bytes > 0
        digest = store.put_blob(b"x" * 100_000)
        store.write(Change(settings={"of": digest.encode()})).result()
        assert store.usage().blob_bytes == before.blob_bytes + 100_000

    def test_a_setting_is_replaced_and_removed(self, open_store: Open) -> None:
        store = open_store()
        store.write(Change(settings={"a": b"1", "b": b"2", "%": b"3"}))
        store.write(Change(settings={"a": None, "b": b"4", "c": None})).result()
        assert store.settings("") == {"b": b"4", "%": b"3"}
        assert store.settings("%") == {"%": b"3"}

    def test_serving_tasks_are_updated_and_forgotten(self, open_store: Open) -> None:
        store = open_store()
        tasks = [ServingTask(f"s{one}", "ocr", "ann", 1.0, -(2**62), "queued", 1.0, "", b"in") for one in range(3)]
        store.write(Change(new_serving=tasks[:1]))
        store.write(Change(new_serving=tasks[1:]))
        store.write(Change(serving_statuses={"s1": ServingStatus("scheduled", 2.0, "i1", None, "s1")}))
        store.write(Change(serving_statuses={"s1": ServingStatus("completed", 3.0, "i1", b"out", "s1")}))
        store.write(Change(serving_statuses={"s2": ServingStatus("scheduled", 2.0, "i2", None, "s2")}))
        store.write(Change(serving_statuses={"none": ServingStatus("failed", 2.0, "", None, "none")})).result()
        store.close()
        store = open_store()
        assert list(store.serving_tasks()) == [
            tasks[0],
            tasks[1]._replace(state="completed", at=3.0, instances="i1", document=b"out"),
            tasks[2]._replace(state="scheduled", at=2.0, instances="i2"),
        ]
        again = tasks[1]._replace(document=b"another")
        change = Change(forgotten_serving=["s0", "s1"])
        change.add(Change(new_serving=[again]))  # as when both are written in one group
        store.write(change).result()
        assert [(one.id, one.document) for one in store.serving_tasks()] == [("s2", b"in"), ("s1", b"another")]

    def test_output_is_kept_in_pieces_until_it_is_stripped_or_its_item_expires(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1)).result()
        for digest, data in (("d1", b"one"), ("d2", b"two")):
            store.reserve({digest: 3}, beyond_quota=True)
            store.write(
                Change(blobs={digest: data}, output=[OutputRecord("t1", 1, digest), OutputRecord("no one", 1, digest)])
            )
        store.write(ended(1, at=200)).result()
        store.close()
        store = open_store()
        for _ in range(3):
            store.delete_unused_blobs()
        assert (store.output("t1", 1), store.output("t1", 2), store.output("no one", 1)) == (["d1", "d2"], [], [])
        assert (store.blob("d1"), store.blob("d2")) == (b"one", b"two")
        store.expire_payloads(201)
        for _ in range(3):
            store.delete_unused_blobs()
        assert store.output("t1", 1) == [None, None]
        assert store.blob("d1") is None
        store.expire(201, keep=100)
        assert store.output("t1", 1) == []

    def test_two_items_of_an_owner_cannot_have_one_key(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1, key="k"))
        store.write(accepted(2, key="k", owner="bob")).result()
        with pytest.raises(Exception, match=r"(?i)unique"):
            store.write(accepted(3, key="k")).result()
        assert (store.id_by_key("ann", "k"), store.id_by_key("bob", "k"), store.id_by_key("ann", "x")) == (
            "t1",
            "t2",
            None,
        )

    def test_only_open_items_are_listed_in_the_order_of_submission(self, open_store: Open) -> None:
        store = open_store()
        for number in (3, 1, 2):
            store.write(accepted(number))
        store.write(ended(2, at=200)).result()
        assert numbers(store) == [1, 3]
        over = ended(3, at=201)
        over.statuses["t3"] = over.statuses["t3"]._replace(
            is_open=True
        )  # it is over, but an attempt is still to be ended
        store.write(over).result()
        assert numbers(store) == [1, 3]
        assert store.expire(1_000.0, keep=0) == 1

    def test_more_than_can_be_read_at_once(self, open_store: Open) -> None:
        store = open_store()
        many = Change()
        for number in range(1, 2_502):
            many.add(accepted(number))
        store.write(many).result()
        assert numbers(store) == list(range(1, 2_502))

    def test_steps_are_numbered_without_gaps_over_everything(self, open_store: Open) -> None:
        store = open_store()
        for number in range(1, 4):
            store.write(accepted(number)).result()
        store.write(ended(1, at=200)).result()
        store.close()
        store = open_store()
        store.write(ended(2, at=201)).result()
        reported = store.events_after(0, 100)
        assert [one.number for one in reported] == [1, 2, 3, 4, 5]
        assert [one.entry.item_id for one in reported if isinstance(one.entry, Step)] == ["t1", "t2", "t3", "t1", "t2"]
        assert store.events_after(3, 1) == reported[3:4]

    def test_steps_decisions_and_notes_have_one_count_in_the_order_of_publication(self, open_store: Open) -> None:
        store = open_store()
        decision = StoredDecision("t1", 1, 101.0, "a", b'{"why": "free"}')
        note = OperationRecord("cluster", "a", 102.0, "ann", b'{"cordoned": true}')
        change = accepted(1)
        step = change.entries[0]
        change.entries[:0] = [note]
        change.entries.append(decision)
        assert store.write(change).result() == 3
        store.close()
        store = open_store()
        assert store.write(Change(entries=[note._replace(user=None)])).result() == 4
        assert store.events_after(0, 10) == [
            EventRecord(1, note),
            EventRecord(2, step, "task", "n1", "ann"),
            EventRecord(3, decision, "task", "n1", "ann"),
            EventRecord(4, note._replace(user=None)),
        ]
        assert [one.number for one in store.events_after(1, 2)] == [2, 3]
        assert store.last_event_number == 4

    def test_each_change_has_its_own_last_number_also_when_many_are_written_at_once(self, open_store: Open) -> None:
        store = open_store()
        futures = [store.write(accepted(number)) for number in range(1, 200)]
        assert [one.result() for one in futures] == list(range(1, 200))

    def test_old_notes_are_forgotten_and_their_numbers_are_not_used_again(self, open_store: Open) -> None:
        store = open_store()
        notes: list[LogEntry] = [OperationRecord("action", str(at), float(at), "ann", b"{}") for at in range(1, 1_201)]
        store.write(Change(entries=notes)).result()
        store.expire(1_200.0, keep=10)
        assert [one.number for one in store.events_after(0, 10)] == [1_200]
        store.expire(5_000.0, keep=10)
        store.close()
        assert open_store().last_event_number == 1_200

    def test_a_change_that_is_refused_leaves_nothing_and_no_gap(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1)).result()
        again = accepted(2)
        again.new.append(item(1))  # there is one of that number
        with pytest.raises(Exception, match=r"(?i)unique"):
            store.write(again).result()
        assert store.item("t2") is None
        assert store.write(accepted(3)).result() == 2
        assert [one.number for one in store.events_after(0, 10)] == [1, 2]

    def test_one_bad_change_does_not_harm_those_that_came_with_it(self, open_store: Open) -> None:
        store = open_store()
        futures = [store.write(accepted(number)) for number in [*range(1, 200), 7, *range(200, 300)]]
        wait(futures)
        assert [future.exception() is None for future in futures] == [True] * 199 + [False] + [True] * 100
        assert numbers(store) == list(range(1, 300))
        assert [one.number for one in store.events_after(0, 1_000)] == list(range(1, 300))

    def test_what_was_given_to_be_written_cannot_be_cancelled(self, open_store: Open) -> None:
        store = open_store()
        futures = [store.write(accepted(number)) for number in range(1, 50)]
        assert not any(future.cancel() for future in futures)
        wait(futures)
        assert store.write(accepted(50)).result(timeout=20) == 50

    def test_an_outcome_of_an_item_that_is_forgotten_is_ignored(self, open_store: Open) -> None:
        store = open_store()
        assert store.write(Change(outcomes=[Outcome("x", 1, b"{}")])).result() == 0
        assert store.outcome("x") is None

    def test_many_threads_write_and_read(self, open_store: Open) -> None:
        store = open_store()

        def some(begin: int) -> None:
            for number in range(begin, begin + 20):
                store.write(accepted(number)).result()
                found = store.item(f"t{number}")
                assert found is not None  # what is acknowledged can be read
                assert found.status.state is PENDING

        threads = [threading.Thread(target=some, args=(1 + 100 * at,)) for at in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(numbers(store)) == 100
        assert [one.number for one in store.events_after(0, 1000)] == list(range(1, 101))

    def test_a_new_fleet_record_replaces_the_old_one(self, open_store: Open) -> None:
        store = open_store()
        store.write(Change(fleet=FleetState({"a": b"1", "b": b"2"}))).result()
        store.write(Change(fleet=FleetState({"b": b"3"}, {"ann": b"4"}))).result()
        assert store.fleet() == FleetState({"b": b"3"}, {"ann": b"4"})

    def test_fences_and_numbers_never_shrink(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(9))
        store.write(Change(fleet=FleetState(), next_fence=8)).result()
        store.write(Change(fleet=FleetState(), next_fence=3)).result()
        store.write(ended(9, at=1.0)).result()
        assert store.expire(2.0, keep=0) == 1
        assert (store.next_fence, store.next_number) == (8, 10)

    # ---- pages

    def test_items_are_found_by_what_they_are(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1, kind="job"))
        store.write(accepted(2, owner="bob"))
        store.write(accepted(3))
        store.write(ended(3, at=200.0)).result()

        def found(wanted: ItemQuery) -> list[str]:
            return [one.new.id for one in store.items(wanted).items]

        assert found(ItemQuery()) == ["t3", "t2", "t1"]
        assert found(ItemQuery(kind="job")) == ["t1"]
        assert found(ItemQuery(owner="bob")) == ["t2"]
        assert found(ItemQuery(cluster="a")) == ["t3"]
        assert found(ItemQuery(states=(SUCCEEDED, QUEUED))) == ["t3"]
        assert found(ItemQuery(states=(PENDING,), owner="ann")) == ["t1"]

    def test_pages_come_one_after_another_while_more_is_submitted(self, open_store: Open) -> None:
        store = open_store()
        for number in range(1, 6):
            store.write(accepted(number)).result()
        first = store.items(ItemQuery(limit=2))
        store.write(accepted(6)).result()
        second = store.items(ItemQuery(limit=2, after=first.after))
        third = store.items(ItemQuery(limit=2, after=second.after))
        assert [one.new.number for page in (first, second, third) for one in page.items] == [5, 4, 3, 2, 1]
        assert third.after is None

    # ---- who leads

    def test_every_opening_leads_with_a_larger_epoch(self, open_store: Open) -> None:
        first = open_store().epoch
        assert open_store().epoch > first

    def test_who_was_overtaken_can_write_no_more(self, open_store: Open) -> None:
        old = open_store()
        old.write(accepted(1)).result()
        new = open_store()
        with pytest.raises(StoreError, match="Another control plane has taken over"):
            old.write(accepted(2)).result()
        with pytest.raises(StoreError, match="Another control plane has taken over"):
            old.write(Change()).result()
        assert old.write_problem is not None
        new.write(accepted(3)).result()
        assert numbers(new) == [1, 3]

    def test_a_closed_one_reports_it(self, open_store: Open) -> None:
        store = open_store()
        future = store.write(accepted(1))
        store.close()
        assert future.result() == 1
        with pytest.raises(StoreError, match="closed"):
            store.write(accepted(2)).result()

    # ---- retention

    def test_numbers_of_steps_are_never_given_again(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1))
        store.write(ended(1, at=5.0)).result()
        store.expire(6.0, keep=0)
        store.close()
        store = open_store()
        assert store.write(accepted(2)).result() == 3
        assert [one.number for one in store.events_after(2, 10)] == [3]

    def test_payloads_and_values_go_before_what_happened(self, open_store: Open) -> None:
        store = open_store()
        data, value = store.put_blob(b"data"), store.put_blob(b"value")
        for number in (1, 2):
            store.write(accepted(number, blobs=(data,)))
        store.write(Change(outcomes=[Outcome("t1", 1, b"{}", value)]))
        store.write(ended(1, at=5.0)).result()
        store.expire_payloads(ended_before=6.0)
        assert store.outcome("t1") == Outcome("t1", 1, b"{}", None)
        assert len(store.steps("t1")) == 2
        assert [store.delete_unused_blobs() for _ in range(3)] == [0, 0, 1]
        assert (store.blob(value), store.blob(data)) == (None, b"data")  # t2 is not over

    def test_what_is_over_is_forgotten_by_age_and_by_number(self, open_store: Open) -> None:
        store = open_store()
        for number in range(1, 7):
            store.write(accepted(number))
        for number in range(1, 6):
            store.write(ended(number, at=200.0 + number)).result()
        assert store.expire(ended_before=202.0, keep=100) == 1
        assert store.expire(ended_before=0.0, keep=2) == 2
        assert [one.new.id for one in store.items(ItemQuery()).items] == ["t6", "t5", "t4"]
        assert [store.expired(f"t{number}") for number in range(1, 8)] == [True] * 3 + [False] * 4
        assert store.known_ids([f"t{number}" for number in range(8)]) == {f"t{number}" for number in range(1, 7)}
        assert [len(store.known_ids([f"t{number}"])) for number in (1, 6, 7)] == [1, 1, 0]
        assert store.known_ids([]) == set()
        assert store.item("t1") is None
        assert store.steps("t1") == []
        assert store.expire(ended_before=0.0, keep=2) == 0

    def test_what_others_need_is_not_forgotten(self, open_store: Open) -> None:
        store = open_store()
        value = store.put_blob(b"value")
        for number in (1, 2):
            store.write(accepted(number))
            store.write(Change(outcomes=[Outcome(f"t{number}", 1, b"{}", value)]))
            store.write(ended(number, at=5.0)).result()
        store.expire_payloads(6.0, needed={"t2", "it's gone"})
        assert [store.outcome(name).digest for name in ("t1", "t2")] == [None, value]  # type: ignore[union-attr]  # both ended
        assert store.expire(6.0, keep=0, needed=["t2"]) == 1
        assert (store.item("t1"), store.item("t2") is None) == (None, False)

    def test_many_are_forgotten(self, open_store: Open) -> None:
        store = open_store()
        many = Change()
        for number in range(1, 1_203):
            many.add(accepted(number))
            many.add(ended(number, at=10.0))
        store.write(many).result()
        assert store.expire(ended_before=11.0, keep=10_000) == 1_202
        assert store.items(ItemQuery()).items == ()

    # ---- blobs

    @pytest.mark.parametrize("size", [10, 100_000])
    def test_a_blob_is_kept_once_and_as_long_as_something_names_it(self, open_store: Open, size: int) -> None:
        store = open_store()
        data = bytes(range(256)) * (size // 10)
        digest = store.put_blob(data)
        assert store.put_blob(data) == digest
        store.write(accepted(1, blobs=(digest,)))
        store.write(ended(1, at=5.0)).result()
        store.close()
        store = open_store()
        assert store.delete_unused_blobs() == 0
        assert store.blob(digest) == data
        store.expire(6.0, keep=0)
        assert store.delete_unused_blobs() == 1
        assert store.blob(digest) is None

    def test_a_blob_that_was_put_just_now_waits_for_its_item(self, open_store: Open) -> None:
        store = open_store()
        digest = store.put_blob(b"code")
        assert store.delete_unused_blobs() == 0
        assert store.blob(digest) == b"code"
        assert [store.delete_unused_blobs(), store.delete_unused_blobs()] == [0, 1]

    def test_small_blobs_come_with_the_change_that_names_them(self, open_store: Open) -> None:
        store = open_store()
        change = accepted(1, blobs=("d",))
        change.blobs["d"] = b"arguments"
        store.write(change).result()
        assert store.blob("d") == b"arguments"

    def test_the_value_of_an_outcome_is_kept(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1)).result()
        digest = store.put_blob(b"value" * 20_000)
        store.write(Change(outcomes=[Outcome("t1", 1, b"{}", digest)])).result()
        assert [store.delete_unused_blobs() for _ in range(3)] == [0, 0, 0]
        assert store.blob(digest) == b"value" * 20_000

    def test_one_that_is_too_large_is_refused(self, open_store: Open) -> None:
        store = open_store(most_blob_bytes=100_000)
        with pytest.raises(TaskSubmissionError, match="A payload of 100,001 bytes is larger"):
            store.put_blob(bytes(100_001))
        assert store.put_blob(bytes(100_000))

    def test_beyond_the_quota_blobs_are_refused_and_nothing_else(self, open_store: Open) -> None:
        store = open_store(quota_bytes=150_000)
        first = store.put_blob(bytes(100_000))
        assert store.put_blob(bytes(100_000)) == first  # it is there already
        with pytest.raises(StoreFullError, match="Payloads and results take 100,000 of 150,000 bytes"):
            store.put_blob(bytes(60_000))
        with pytest.raises(StoreFullError, match="Payloads and results"):
            store.reserve({"d": 30_000, "e": 30_000})
        store.reserve({"d": 30_000})  # of those that were refused nothing is counted
        with pytest.raises(StoreFullError, match="Payloads and results"):
            store.reserve({"e": 30_000})
        store.write(Change(blobs={"d": bytes(30_000)})).result()
        assert [store.delete_unused_blobs() for _ in range(3)] == [0, 0, 2]
        assert store.put_blob(bytes(140_000))

    def test_room_for_what_was_not_written_is_free_again(self, open_store: Open) -> None:
        store = open_store(quota_bytes=100)
        store.write(accepted(1)).result()
        store.reserve({"d": 90})
        bad = accepted(1)
        bad.blobs["d"] = bytes(90)
        with pytest.raises(Exception, match=r"(?i)unique"):
            store.write(bad).result()
        store.reserve({"e": 90})

    def test_a_pinned_blob_is_kept(self, open_store: Open) -> None:
        store = open_store()
        digest = store.put_blob(b"code")
        assert [store.delete_unused_blobs(), store.delete_unused_blobs()] == [0, 0]
        assert store.pin_blobs([digest, "never"]) == ["never"]
        assert [store.delete_unused_blobs(), store.delete_unused_blobs()] == [0, 0]
        assert store.delete_unused_blobs() == 1
        assert store.pin_blobs([digest]) == [digest]

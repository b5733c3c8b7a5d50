"""What any store has to answer beside the rest of its contract."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store import Change, ItemQuery, ItemStatus, Step, UnfinishedCount
from tests.unit.store.contract import PENDING, Open, accepted, ended


class QuestionContract:
    """The fixture ``open_store`` is the subclass's."""

    def test_items_are_found_by_name_time_and_id_prefix(self, open_store: Open) -> None:
        store = open_store()
        for number, owner in enumerate(["ann", "bob", "ann"], start=1):
            store.write(accepted(number, owner=owner)).result()

        def found(wanted: ItemQuery) -> list[str]:
            return [one.new.id for one in store.items(wanted).items]

        assert found(ItemQuery(name="n2")) == ["t2"]
        assert found(ItemQuery(id_prefix="t")) == ["t3", "t2", "t1"]
        assert found(ItemQuery(id_prefix="%")) == []
        assert found(ItemQuery(since=102.0)) == ["t3", "t2"]
        assert found(ItemQuery(since=102.0, oldest_first=True)) == ["t2", "t3"]
        assert found(ItemQuery(after=1, limit=1, oldest_first=True)) == ["t2"]
        assert found(ItemQuery(since=101.0, until=103.0, owner="bob")) == ["t2"]

    def test_unfinished_items_are_counted_by_kind_owner_state_and_cluster(self, open_store: Open) -> None:
        store = open_store()
        for number, owner in enumerate(["ann", "bob", "ann", "ann"], start=1):
            store.write(accepted(number, owner=owner)).result()
        store.write(ended(4, 105.0)).result()
        store.write(Change([], {"t3": ItemStatus("t3", TaskState.RUNNING, 1, "a")})).result()
        assert sorted(store.count_unfinished(), key=str) == [
            UnfinishedCount("task", "ann", PENDING, None, 1),
            UnfinishedCount("task", "ann", TaskState.RUNNING, "a", 1),
            UnfinishedCount("task", "bob", PENDING, None, 1),
        ]

    def test_when_the_first_of_what_ran_and_is_over_was_submitted(self, open_store: Open) -> None:
        store = open_store()
        assert store.oldest_completed_run(None) is None
        for number, owner in enumerate(["ann", "bob", "ann", "ann"], start=1):
            store.write(accepted(number, owner=owner, submitted_at=200.0 - number)).result()
        for number in (1, 2, 4):  # 4 goes on
            ran = Step(f"t{number}", 2, TaskState.RUNNING, 1, 201.0, "X", "runs", "a")
            store.write(Change([], {}, [ran])).result()
        for number in (1, 2, 3):  # 3 never ran
            store.write(ended(number, 300.0, step=3)).result()
        assert (
            store.oldest_completed_run(None),
            store.oldest_completed_run("ann"),
            store.oldest_completed_run("eve"),
        ) == (198.0, 199.0, None)

    def test_what_was_sent_lately_and_is_over(self, open_store: Open) -> None:
        """Of each kind and cluster the last one, of gangs all: what rules them is not known here."""
        store = open_store()
        sent = [("job", "a", 1, 110.0), ("job", "a", 1, 120.0), ("job", "b", 1, 115.0), ("task", "a", 1, 111.0)]
        sent += [("gang", "a", 1, 112.0), ("gang", "a", 1, 113.0)]
        sent += [("job", "c", 1, 90.0), ("job", "c", 2, 121.0), ("job", "c", 1, 122.0)]
        for number, (kind, cluster, attempt, at) in enumerate(sent, start=1):
            store.write(accepted(number, kind=kind, submitted_at=80.0)).result()
            step = Step(f"t{number}", 2, TaskState.DISPATCHING, attempt, at, "PLACED", "is sent", cluster)
            store.write(Change([], {}, [step])).result()
        for number in range(1, len(sent)):  # the last one goes on
            store.write(ended(number, 130.0, step=3)).result()
        assert sorted(store.last_dispatches_since(100.0)) == [
            ("t2", "a", 120.0),
            ("t3", "b", 115.0),
            ("t4", "a", 111.0),
            ("t5", "a", 112.0),
            ("t6", "a", 113.0),
        ]
        assert store.last_dispatches_since(131.0) == []

    @pytest.mark.parametrize("size", [10, 100_000])
    def test_whose_a_blob_is_is_known_as_long_as_it_is_here(self, open_store: Open, size: int) -> None:
        store = open_store()
        for user in ("ann", "bob", "ann"):
            digest = store.put_blob(bytes(size), user=user)
        store.put_blob(bytes(size))
        store = open_store()
        assert [store.owns_blob(user, digest) for user in ("ann", "bob", "eve")] == [True, True, False]
        store.write(accepted(1, owner="eve", blobs=(digest,))).result()
        assert store.owns_blob("eve", digest)
        for _ in range(3):
            store.delete_unused_blobs()
        assert [store.owns_blob(user, digest) for user in ("ann", "eve")] == [True, True], "an item has it"
        store.write(ended(1, 105.0)).result()
        store.expire_payloads(200.0)
        for _ in range(3):
            store.delete_unused_blobs()
        store.put_blob(bytes(size), user="joe")
        users = ("ann", "bob", "eve", "joe")
        assert [store.owns_blob(user, digest) for user in users] == [False, False, False, True]

    def test_repetitions_are_found_the_newest_ones_in_their_order(self, open_store: Open) -> None:
        store = open_store()
        store.write(accepted(1)).result()
        for number in (2, 3, 4):
            store.write(accepted(number, repeats="t1")).result()
        store = open_store()
        found = store.item("t2")
        assert found is not None
        assert (found.new.repeats, store.retries_of("t1", 10)) == ("t1", ["t2", "t3", "t4"])
        assert (store.retries_of("t1", 2), store.retries_of("t2", 10)) == (["t3", "t4"], [])

    def test_a_large_blob_comes_in_pieces(self, open_store: Open) -> None:
        store = open_store()
        data = bytes(range(256)) * 10_000
        found = store.blob_pieces(store.put_blob(data))
        assert found is not None
        size, pieces = found
        reported = list(pieces)
        assert (size, b"".join(reported), len(reported)) == (len(data), data, 3)
        assert store.blob_pieces(store.put_blob(b"small")) is None
        assert store.blob_pieces("nobody") is None

"""The ledger: ours is exact, others is what snapshots leave, free is the rest."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE
from ray_multicluster_scheduler.scheduler.cluster.ledger import Ledger


def seen(at: float, source: str = "agent", session: str | None = "s1", **free: float | None) -> ResourceSnapshot:
    """Nodes of 8 CPUs with this much free; None: nobody knows."""
    nodes = tuple(
        NodeSnapshot(name, {"CPU": 8.0}, None if cpus is None else {"CPU": float(cpus)}) for name, cpus in free.items()
    )
    return ResourceSnapshot("c", at, nodes, source, session)  # the literal, from a table


def free(ledger: Ledger) -> dict[str, float | None]:
    return {node.node_id: None if node.free is None else node.free["CPU"] for node in ledger.nodes()}


def reserve(ledger: Ledger, name: str, cpus: float, at: float, node: str = "n1") -> None:
    ledger.reserve(name, {node: {"CPU": cpus}}, at)


def test_without_a_snapshot_there_is_nothing() -> None:
    ledger = Ledger()
    assert ledger.nodes() == ()
    assert ledger.latest_snapshot is None
    assert ledger.free() is None


def test_free_is_total_less_others_less_ours() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=5))
    reserve(ledger, "t", 2, at=11)
    (node,) = ledger.nodes()
    assert (node.external, node.reserved, node.free) == ({"CPU": 3}, {"CPU": 2}, {"CPU": 3})
    ledger.observe(seen(12, n1=3, n2=8))
    assert ledger.free() == {"CPU": 11}
    ledger.observe(seen(13, n1=3, n2=8, n3=None))
    assert ledger.free() is None


def test_a_snapshot_that_shows_our_work_does_not_count_it_twice() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8))
    reserve(ledger, "t", 2, at=11)
    ledger.observe(seen(12, n1=6))
    assert free(ledger) == {"n1": 6}


def test_a_stale_snapshot_that_does_not_show_our_work_yet_is_no_free_room() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, "http", n1=8))
    reserve(ledger, "t", 2, at=11)
    ledger.observe(seen(12, "http", n1=8))
    assert free(ledger) == {"n1": 6}


def test_work_that_ended_but_still_shows_is_not_taken_for_others() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, "http", n1=8))
    reserve(ledger, "t", 2, at=11)
    ledger.release("t", 14)
    ledger.observe(seen(15, "http", n1=6))  # shows the moment before the end
    assert free(ledger) == {"n1": 8}
    ledger.observe(seen(21, "http", n1=6))  # too long ago for that: another user
    assert free(ledger) == {"n1": 6}


@pytest.mark.parametrize(("source", "at", "expected"), [("agent", 14.2, 8), ("agent", 14.5, 6), ("http", 19.9, 8)])
def test_released_amounts_expire_by_snapshot_source(source: str, at: float, expected: float) -> None:
    ledger = Ledger()
    reserve(ledger, "t", 2, at=11)
    ledger.release("t", 14)
    ledger.observe(seen(at, source, n1=6))
    assert free(ledger) == {"n1": expected}


def test_others_are_the_highest_of_the_snapshots_within_the_staleness() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, "http", n1=2))
    ledger.observe(seen(13, "http", n1=8))
    assert free(ledger) == {"n1": 2}
    ledger.observe(seen(17, "http", n1=8))
    assert free(ledger) == {"n1": 8}


def test_the_same_snapshot_twice_changes_nothing() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.observe(seen(10, n1=5))
    assert free(ledger) == {"n1": 5}


def test_an_old_snapshot_that_comes_late_does_not_bring_old_nodes_back() -> None:
    ledger = Ledger()
    ledger.observe(seen(20, n1=8))
    ledger.observe(seen(10, n1=1, n2=8))
    assert free(ledger) == {"n1": 8}
    assert ledger.latest_snapshot is not None
    assert ledger.latest_snapshot.taken_at == 20


def test_reordered_snapshots_within_the_staleness_give_the_same_as_in_order() -> None:
    ordered, reordered = Ledger(), Ledger()
    first, second = seen(20, "http", n1=3), seen(22, "http", n1=6)
    for ledger, snapshots in ((ordered, (first, second)), (reordered, (second, first))):
        for one in snapshots:
            ledger.observe(one)
    assert free(ordered) == free(reordered) == {"n1": 3}


def test_a_snapshot_from_the_future_is_compared_with_what_is_ours_now() -> None:
    ledger = Ledger()
    reserve(ledger, "t", 2, at=11)
    ledger.observe(seen(500, n1=6))
    assert free(ledger) == {"n1": 6}


def test_unknown_is_not_idle() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=None, n2=4))
    assert free(ledger) == {"n1": None, "n2": 4}
    ledger.observe(seen(11, n1=8, n2=4))
    ledger.observe(seen(12, n1=None, n2=4))
    assert free(ledger) == {"n1": None, "n2": 4}


def test_a_node_that_vanished_gives_no_room_and_its_reservation_is_kept() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "t", 2, at=11, node="n2")
    ledger.observe(seen(12, n1=8))
    assert free(ledger) == {"n1": 8}
    ledger.observe(seen(13, n1=8, n2=6))
    assert free(ledger) == {"n1": 8, "n2": 6}
    ledger.observe(seen(14, n1=8))
    ledger.release("t", 15)
    ledger.observe(seen(16, n1=8, n2=8))
    assert free(ledger) == {"n1": 8, "n2": 8}


def test_another_session_forgets_what_others_used() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, "http", n1=0))
    ledger.observe(seen(11, "http", session="s2", n1=8))
    assert free(ledger) == {"n1": 8}
    ledger.observe(seen(10.5, "http", session="s1", n1=0))
    assert free(ledger) == {"n1": 8}


def test_a_source_that_does_not_know_the_session_starts_no_new_one() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, "http", n1=1))
    ledger.observe(seen(11, "http", session=None, n1=8))
    assert free(ledger) == {"n1": 1}


def test_work_that_started_on_another_node_moves_there() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "t", 3, at=11)
    ledger.observe(seen(11.5, n1=8, n2=5))  # it is there already, but who knows
    assert free(ledger) == {"n1": 5, "n2": 5}
    ledger.move("t", "n2", 11.6)
    ledger.observe(seen(11.9, n1=8, n2=5))
    assert free(ledger) == {"n1": 8, "n2": 5}
    ledger.release("t", 12)
    ledger.observe(seen(12.5, n1=8, n2=8))
    assert free(ledger) == {"n1": 8, "n2": 8}


def test_moving_explains_snapshots_since_the_reservation() -> None:
    ledger = Ledger()
    reserve(ledger, "t", 3, at=11)
    ledger.move("t", "n2", 11.6)
    ledger.release("t", 11.7)
    ledger.observe(seen(11.2, n1=8, n2=5))  # late: shows it on n2 before we knew
    assert free(ledger) == {"n1": 8, "n2": 8}


def test_moving_what_holds_nothing_or_is_there_changes_nothing() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8))
    ledger.reserve("nothing", {}, 10)
    reserve(ledger, "t", 3, at=10)
    for name in ("nothing", "t", "stranger"):
        ledger.move(name, "n1", 11)
    assert free(ledger) == {"n1": 5}


def test_an_item_holds_one_reservation_and_releases_it_once() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8))
    reserve(ledger, "t", 3, at=11)
    reserve(ledger, "t", 2, at=12)
    assert free(ledger) == {"n1": 6}
    ledger.release("t", 13)
    ledger.release("t", 14)
    assert free(ledger) == {"n1": 8}
    assert ledger.reservations == {}


def test_many_small_amounts_leave_no_dust() -> None:
    ledger = Ledger()
    ledger.observe(seen(0, n1=8))
    for number in range(80):
        reserve(ledger, f"t{number}", 0.1, at=1 + number)
    assert free(ledger) == {"n1": 0}
    for number in range(80):
        ledger.release(f"t{number}", 100 + number)
    assert ledger.nodes()[0].reserved == {}
    assert free(ledger) == {"n1": 8}


def test_sizes_that_nodes_had_are_remembered_until_the_entry_changes() -> None:
    ledger = Ledger()
    ledger.observe(seen(1, n1=8))
    big = ResourceSnapshot("c", 2, (NodeSnapshot("n2", {"CPU": 16.0}, {"CPU": 16.0}),), "agent", "s1")
    ledger.observe(big)
    ledger.observe(seen(3, n1=8))
    assert list(ledger.past_node_sizes) == [{"CPU": 16.0}]
    ledger.forget_node_sizes()
    assert list(ledger.past_node_sizes) == []


def test_remembered_sizes_are_bounded() -> None:
    ledger = Ledger()
    for number in range(100):
        total = {"CPU": float(number), "memory": 1000.0 - number}
        ledger.observe(ResourceSnapshot("c", number, (NodeSnapshot("n", total, total),), "agent", "s1"))
    assert len(ledger.past_node_sizes) == 16


def test_what_is_displaced_is_expected_where_there_is_room() -> None:
    """Ray started the first where the second was expected: the second will start where the first was to be."""
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "first", 8, at=11, node="n1")
    reserve(ledger, "second", 8, at=11, node="n2")
    assert ledger.move("first", "n2", 11.5)
    assert free(ledger) == {"n1": 0, "n2": 0}
    assert {name: list(one.parts) for name, one in ledger.reservations.items()} == {"second": ["n1"], "first": ["n2"]}
    assert not ledger.move("second", "n1", 11.6)


def test_what_runs_there_or_fits_nowhere_else_stays_booked() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "runs", 4, at=11, node="n2")
    assert not ledger.move("runs", "n2", 11.1)
    reserve(ledger, "waits", 4, at=11, node="n2")
    reserve(ledger, "moves", 8, at=11, node="n1")
    ledger.reserve("divided", {"n2": {"CPU": 1.0}}, 11, spreads=True)
    reserve(ledger, "other", 5, at=11, node="n1")
    assert ledger.move("moves", "n2", 11.5)
    assert ledger.reservations["runs"].parts == {"n2": {"CPU": 4}}
    assert ledger.reservations["waits"].parts == {"n2": {"CPU": 4}}  # the three that are left on n1 are too few
    assert free(ledger) == {"n1": 3, "n2": 0}


def test_work_that_starts_on_an_unknown_node_displaces_no_other() -> None:
    ledger = Ledger()
    reserve(ledger, "t", 8, at=11, node="n1")
    reserve(ledger, "u", 8, at=11, node="n9")
    assert ledger.move("t", "n9", 12)
    assert {name: list(one.parts) for name, one in ledger.reservations.items()} == {"u": ["n9"], "t": ["n9"]}


def test_a_gang_is_arranged_as_it_was_started() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    ledger.reserve("g", {"n1": {"CPU": 4.0}, "n2": {"CPU": 2.0}}, 11, spreads=True)
    assert not ledger.arrange("g", {"n1": {"CPU": 4.0}, "n2": {"CPU": 2.0}}, 11.5)
    assert ledger.arrange("g", {"n2": {"CPU": 6.0}}, 11.6)
    assert free(ledger) == {"n1": 8, "n2": 2}
    assert not ledger.arrange("stranger", {"n1": {"CPU": 1.0}}, 12)


def test_a_place_is_handed_over_as_it_is() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8))
    reserve(ledger, "ended", 3, at=11)
    assert ledger.hand_over("ended", "begun")
    assert list(ledger.reservations) == ["begun"]
    assert free(ledger) == {"n1": 5}
    assert not ledger.hand_over("ended", "somebody")


def test_an_actor_that_is_ready_may_hold_less() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8))
    reserve(ledger, "a", 4, at=11)
    ledger.move("a", "n1", 11.5)
    ledger.shrink("a", {"CPU": 1.0}, 12)
    assert free(ledger) == {"n1": 7}
    assert ledger.reservations["a"].started_at == 11.5
    ledger.shrink("a", {}, 13)
    assert free(ledger) == {"n1": 8}
    ledger.shrink("a", {"CPU": 1.0}, 14)  # it holds nothing any more, and nowhere
    ledger.shrink("stranger", {"CPU": 1.0}, 14)
    assert free(ledger) == {"n1": 8}
    assert ledger.reservations["a"].parts == {}


# ---- nodes that are still to be added


def test_what_waits_for_a_node_is_booked_where_room_appears() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=0))
    for name, cpus in (("t", 6.0), ("u", 4.0)):
        ledger.reserve(name, {NEW_NODE: {"CPU": cpus}}, 11)
    assert ledger.pending_on_new_nodes() == {"CPU": 10}
    assert ledger.waits_for_node("t")
    ledger.observe(seen(30, n1=0, n2=8))
    assert free(ledger) == {"n1": 0, "n2": 2}
    assert (ledger.waits_for_node("t"), ledger.waits_for_node("u")) == (False, True)
    ledger.release("t", 40)
    assert ledger.pending_on_new_nodes() == {}
    assert free(ledger) == {"n1": 0, "n2": 4}
    assert not ledger.waits_for_node("stranger")


def test_what_may_be_divided_takes_what_a_fresh_node_has() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=0))
    ledger.reserve("job", {NEW_NODE: {"CPU": 12.0}}, 11, spreads=True)
    ledger.reserve("task", {NEW_NODE: {"CPU": 9.0}}, 11)
    ledger.observe(seen(30, n1=0, n2=8))
    ledger.observe(seen(31, n1=0, n2=8))  # nothing new
    assert ledger.reservations["job"].parts == {"n2": {"CPU": 8}, NEW_NODE: {"CPU": 4}}
    ledger.observe(seen(40, n1=0, n2=0, n3=8))
    assert ledger.reservations["job"].parts == {"n2": {"CPU": 8}, "n3": {"CPU": 4}}
    assert ledger.reservations["task"].parts == {NEW_NODE: {"CPU": 9}}
    ledger.observe(seen(50, n1=0, n2=0, n3=4, n4=8))
    ledger.release("job", 60)
    ledger.release("task", 60)
    assert ledger.pending_on_new_nodes() == {}
    assert {node.node_id: node.reserved for node in ledger.nodes()} == {"n1": {}, "n2": {}, "n3": {}, "n4": {}}


# ---- sessions


def test_how_many_nodes_the_session_of_an_item_had() -> None:
    ledger = Ledger()
    assert ledger.node_count_at_placement("t") is None
    reserve(ledger, "before", 2, at=9)
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "old", 2, at=11)
    assert (
        ledger.node_count_at_placement("old"),
        ledger.node_count_at_placement("stranger"),
        ledger.node_count_at_placement("before"),
    ) == (2, 2, None)
    ledger.observe(seen(20, session="s2", n1=8))
    reserve(ledger, "new", 2, at=21)
    assert (
        ledger.node_count_at_placement("old"),
        ledger.node_count_at_placement("new"),
        ledger.node_count_at_placement("before"),
    ) == (2, 1, None)
    assert ledger.node_count_at_placement("sent ahead") == 2  # nobody knows in which of the two


def test_the_history_of_a_node_that_is_gone_is_forgotten() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "t", 4, at=11, node="n2")
    ledger.release("t", 12)
    ledger.observe(seen(12.1, n1=8))
    ledger.observe(seen(12.2, n1=8, n2=4))  # nobody remembers that four of them were ours a moment ago
    assert free(ledger) == {"n1": 8, "n2": 4}


def test_a_gang_that_gives_up_a_node_leaves_the_others_alone() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    ledger.reserve("g", {"n1": {"CPU": 4.0}, "n2": {"CPU": 4.0}}, 11, spreads=True)
    assert ledger.arrange("g", {"n1": {"CPU": 4.0}}, 12)
    assert free(ledger) == {"n1": 4, "n2": 8}


def test_a_fresh_node_that_is_in_use_already_is_used_by_what_it_came_for() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=0))
    ledger.reserve("job", {NEW_NODE: {"CPU": 6.0}}, 11, spreads=True)
    ledger.observe(seen(30, n1=0, n2=2))
    node = ledger.nodes()[1]
    assert (node.external, node.reserved, node.free) == ({"CPU": 0}, {"CPU": 6}, {"CPU": 2})


def test_of_two_snapshots_of_the_same_moment_the_second_one_counts() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8))
    ledger.observe(seen(10, n1=8, n2=8))
    assert free(ledger) == {"n1": 8, "n2": 8}


def test_only_as_many_give_way_as_must() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "moves", 4, at=11, node="n1")
    for name in ("first", "second"):
        reserve(ledger, name, 4, at=11, node="n2")
    assert ledger.move("moves", "n2", 12)
    where = {name: next(iter(one.parts)) for name, one in ledger.reservations.items()}
    assert where == {"first": "n1", "second": "n2", "moves": "n2"}

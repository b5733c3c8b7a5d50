"""The ledger: ours is exact, others is what snapshots leave, free is the rest."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot
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
    assert ledger.newest is None


def test_free_is_total_less_others_less_ours() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=5))
    reserve(ledger, "t", 2, at=11)
    (node,) = ledger.nodes()
    assert (node.others, node.ours, node.free) == ({"CPU": 3}, {"CPU": 2}, {"CPU": 3})


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
    ledger.observe(seen(21, "http", n1=6))  # too long ago for that: somebody else
    assert free(ledger) == {"n1": 6}


@pytest.mark.parametrize(("source", "at", "expected"), [("agent", 14.2, 8), ("agent", 14.5, 6), ("http", 19.9, 8)])
def test_how_long_depends_on_the_source(source: str, at: float, expected: float) -> None:
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
    assert ledger.newest is not None
    assert ledger.newest.taken_at == 20


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
    assert ledger.nodes()[0].ours == {}
    assert free(ledger) == {"n1": 8}


def test_sizes_that_nodes_had_are_remembered_until_the_entry_changes() -> None:
    ledger = Ledger()
    ledger.observe(seen(1, n1=8))
    big = ResourceSnapshot("c", 2, (NodeSnapshot("n2", {"CPU": 16.0}, {"CPU": 16.0}),), "agent", "s1")
    ledger.observe(big)
    ledger.observe(seen(3, n1=8))
    assert list(ledger.bygone_nodes) == [{"CPU": 16.0}]
    ledger.forget_sizes()
    assert list(ledger.bygone_nodes) == []


def test_remembered_sizes_are_bounded() -> None:
    ledger = Ledger()
    for number in range(100):
        total = {"CPU": float(number), "memory": 1000.0 - number}
        ledger.observe(ResourceSnapshot("c", number, (NodeSnapshot("n", total, total),), "agent", "s1"))
    assert len(ledger.bygone_nodes) == 16

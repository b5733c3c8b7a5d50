"""Safety of the books: whatever becomes of snapshots, and whatever others do."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model.resources import fits
from tests.unit.cluster.true_cluster import TOTAL, TrueCluster

nodes = st.sampled_from(sorted(TOTAL))
moments = st.sampled_from([0.0, 0.05, 0.1, 0.4, 1.0, 3.0, 7.0])
sources = st.sampled_from(["agent", "http"])

OURS = (
    st.tuples(st.just("wait"), moments),
    st.tuples(st.just("send"), st.sampled_from([1, 2, 4]), st.booleans()),
    st.tuples(st.just("send"), st.sampled_from([1, 2, 4, 8]), st.just(False)),
    st.tuples(st.just("start"), st.integers(0, 20), nodes),
    st.tuples(st.just("end"), st.integers(0, 20)),
)
QUICKLY = st.tuples(st.just("wait"), st.sampled_from([0.0, 0.05, 0.1, 0.4, 0.7]))
PUSH = st.tuples(st.just("push"), sources, st.sampled_from([0.0, 0.5, 1.0]))
MAIL = (
    PUSH,
    PUSH,
    st.tuples(st.just("snapshot"), sources, st.sampled_from([0.0, 0.5, 1.0])),
    st.tuples(st.just("deliver"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("lose"), st.integers(0, 5)),
)
OTHERS = (st.tuples(st.just("others"), nodes, st.integers(0, 8)),)
RESTART = (st.tuples(st.just("restart")),)


def some_use() -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries({node: st.integers(0, int(total)).map(float) for node, total in TOTAL.items()})


def do(cluster: TrueCluster, step: tuple[Any, ...]) -> None:
    """One thing happens."""
    names = list(cluster.items)
    match step:
        case ("wait", seconds):
            cluster.wait(seconds)
        case ("send", cpus, is_job):
            cluster.send(cpus, is_job=is_job)
        case ("start", index, node) if names:
            cluster.start(names[index % len(names)], node)
        case ("end", index) if names:
            cluster.end(names[index % len(names)])
        case ("snapshot", source, delay):
            cluster.take_snapshot(source, delay)
        case ("push", source, delay):
            cluster.take_snapshot(source, delay)
            cluster.deliver(-1)
        case ("deliver", index, keep):
            cluster.deliver(index, keep=keep)
        case ("lose", index) if cluster.mail:
            cluster.mail.pop(index % len(cluster.mail))
        case ("others", node, cpus):
            cluster.others_use(node, float(cpus))
        case ("restart",):
            cluster.restart()


def come_to_rest(cluster: TrueCluster) -> None:
    """All of ours ends, and after a while the cluster says how it is."""
    for name in list(cluster.items):
        cluster.end(name)
    cluster.mail.clear()
    for _ in range(2):
        cluster.wait(10.0)
        cluster.take_snapshot("agent", 0.0)
        cluster.deliver(0)


IT_ENDS_BESIDE_OTHERS = [
    ("send", 4, False),
    ("wait", 7.0),
    ("push", "agent", 0.0),
    ("end", 0),
    ("wait", 0.1),
    ("push", "agent", 0.0),
]
IT_IS_LATE_BESIDE_OTHERS = [("wait", 7.0), ("send", 4, False), ("wait", 1.0), ("push", "agent", 0.0)]
HALF = {"n1": 4.0, "n2": 4.0, "n3": 4.0}


@example(HALF, IT_ENDS_BESIDE_OTHERS)
@example(HALF, IT_IS_LATE_BESIDE_OTHERS)
@settings(max_examples=150)
@given(some_use(), st.lists(st.one_of(QUICKLY, *OURS[1:], *MAIL), min_size=5, max_size=40))
def test_room_that_others_use_is_never_given_away(use: dict[str, float], steps: list[tuple[Any, ...]]) -> None:
    """While others neither come nor go, the books never show more room than there is, however snapshots come.

    All happens within UNCONFIRMED_S: older bounds that no snapshot confirms are dropped.
    """
    cluster = TrueCluster(dict(use))
    for step in steps:
        do(cluster, step)
        for node in cluster.ledger.nodes():
            assert node.free is not None
            promised = cluster.now, node.node_id, node.free["CPU"] + node.reserved.get("CPU", 0.0)
            assert promised[2] <= TOTAL[node.node_id] - use[node.node_id], promised


@settings(max_examples=80)
@given(some_use(), st.booleans(), st.lists(st.one_of(*OURS, *MAIL, *OTHERS, *RESTART), min_size=5, max_size=40))
def test_what_is_seen_to_run_never_exceeds_the_last_known_capacity(
    use: dict[str, float], obedient: bool, steps: list[tuple[Any, ...]]
) -> None:
    cluster = TrueCluster(dict(use), obedient=obedient)
    for step in steps:
        do(cluster, step)
        running: dict[str, float] = {}
        for name, reservation in cluster.ledger.reservations.items():
            if cluster.items[name].holds:
                for node_id, part in reservation.parts.items():
                    running[node_id] = running.get(node_id, 0.0) + part["CPU"]
        for node in cluster.ledger.nodes():
            assert running.get(node.node_id, 0.0) <= node.total["CPU"], (node.node_id, running)
            assert node.free is None or all(amount >= 0 for amount in node.free.values())


@settings(max_examples=80)
@given(some_use(), st.lists(st.one_of(*OURS, *MAIL, *OTHERS, *RESTART), min_size=5, max_size=40))
def test_reservations_never_exceed_the_last_known_capacity_where_ray_starts_work_as_expected(
    use: dict[str, float], steps: list[tuple[Any, ...]]
) -> None:
    """All of them, also those that did not start yet: each was made where the books had room."""
    cluster = TrueCluster(dict(use))
    for step in steps:
        do(cluster, step)
        for node in cluster.ledger.nodes():
            assert fits(node.reserved, node.total), (node.node_id, node.reserved)


@settings(max_examples=80)
@given(some_use(), st.booleans(), st.lists(st.one_of(*OURS, *MAIL, *OTHERS, *RESTART), min_size=5, max_size=40))
def test_released_reservations_leave_no_rest(
    use: dict[str, float], obedient: bool, steps: list[tuple[Any, ...]]
) -> None:
    """When all of ours has ended and the cluster was heard, the books and the truth are the same."""
    cluster = TrueCluster(dict(use), obedient=obedient)
    for step in steps:
        do(cluster, step)
        assert set(cluster.ledger.reservations) == set(cluster.items)
    come_to_rest(cluster)
    assert cluster.ledger.reservations == {}
    for node in cluster.ledger.nodes():
        assert node.reserved == {}
        assert node.external == {"CPU": cluster.others[node.node_id]}
        assert node.free == {"CPU": TOTAL[node.node_id] - cluster.others[node.node_id]}


@settings(max_examples=60)
@given(some_use(), st.lists(st.one_of(*OURS, *MAIL, *OTHERS), max_size=30), st.permutations(range(6)))
def test_the_order_and_number_of_arrivals_do_not_matter(
    use: dict[str, float], steps: list[tuple[Any, ...]], order: list[int]
) -> None:
    """The same snapshots, in another order and some of them twice, tell the same in the end."""
    cluster = TrueCluster(dict(use))
    for step in steps:
        do(cluster, step)
    cluster.wait(20.0)
    cluster.mail.clear()
    for _ in range(6):
        cluster.wait(0.05)
        cluster.take_snapshot("http", 0.5)
    letters = list(cluster.mail)
    for index in order:
        cluster.ledger.observe(letters[index])
        cluster.ledger.observe(letters[order[0]])
    for node in cluster.ledger.nodes():
        assert node.external == {"CPU": cluster.others[node.node_id]}

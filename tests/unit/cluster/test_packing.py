"""A gang's bundles on nodes: never more than a node has, and as its strategy says."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model.resources import fits, plus
from ray_multicluster_scheduler.scheduler.cluster.packing import never_fits, pack

STRATEGIES = ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]

amounts = st.integers(0, 4).map(float)
bundle = st.fixed_dictionaries({"CPU": st.integers(1, 4).map(float)}, optional={"GPU": st.integers(1, 2).map(float)})
room = st.fixed_dictionaries({"CPU": st.integers(0, 8).map(float)}, optional={"GPU": amounts})


def cpus(*numbers: float) -> list[dict[str, float]]:
    return [{"CPU": number} for number in numbers]


def taken(bundles: list[dict[str, float]], chosen: tuple[int, ...] | list[int]) -> dict[int, dict[str, float]]:
    on: dict[int, dict[str, float]] = {}
    for one, at in zip(bundles, chosen, strict=True):
        on[at] = plus(on.get(at, {}), one)
    return on


def obeys(strategy: str, chosen: tuple[int, ...] | list[int]) -> bool:
    if strategy == "STRICT_PACK":
        return len(set(chosen)) == 1
    return strategy != "STRICT_SPREAD" or len(set(chosen)) == len(chosen)


@given(st.lists(bundle, min_size=1, max_size=6), st.lists(room, max_size=5), st.sampled_from(STRATEGIES))
def test_never_over_a_nodes_capacity_and_by_the_strategy(
    bundles: list[dict[str, float]], rooms: list[dict[str, float]], strategy: str
) -> None:
    chosen = pack(bundles, strategy, rooms)
    if chosen is None:
        return
    assert all(fits(need, rooms[at]) for at, need in taken(bundles, chosen).items())
    assert obeys(strategy, chosen)


@given(st.lists(bundle, min_size=1, max_size=4), st.lists(room, max_size=4), st.sampled_from(STRATEGIES))
def test_small_ones_are_packed_if_and_only_if_there_is_a_way(
    bundles: list[dict[str, float]], rooms: list[dict[str, float]], strategy: str
) -> None:
    ways = (
        way
        for way in product(range(len(rooms)), repeat=len(bundles))
        if obeys(strategy, way) and all(fits(need, rooms[at]) for at, need in taken(bundles, way).items())
    )
    exists = next(ways, None) is not None
    assert (pack(bundles, strategy, rooms) is not None) == exists
    assert never_fits(bundles, strategy, rooms) == (not exists)


def test_pack_takes_one_node_where_it_can_and_the_fullest_that_does() -> None:
    assert pack(cpus(1, 1), "PACK", cpus(8, 2, 4)) == [1, 1]
    assert pack(cpus(2, 2, 2), "PACK", cpus(4, 4)) in ([0, 0, 1], [1, 1, 0])


def test_spread_shares_a_node_only_when_there_are_no_more() -> None:
    assert sorted(pack(cpus(1, 1), "SPREAD", cpus(8, 8)) or []) == [0, 1]
    assert sorted(Counter(pack(cpus(1, 1, 1, 1), "SPREAD", cpus(8, 8)) or []).values()) == [2, 2]


def test_strict_ones_wait_rather_than_bend() -> None:
    assert pack(cpus(2, 2), "STRICT_PACK", cpus(3, 3)) is None
    assert pack(cpus(2, 2), "PACK", cpus(3, 3)) is not None
    assert pack(cpus(1, 1), "STRICT_SPREAD", cpus(8)) is None
    assert pack(cpus(1, 1), "SPREAD", cpus(8)) == [0, 0]


def test_different_nodes_are_found_although_the_first_choice_is_wrong() -> None:
    """The larger one fits the second node best, but the one with the GPU fits no other: the larger one moves on."""
    bundles = [{"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}]
    rooms = [{"CPU": 8.0}, {"CPU": 4.0, "GPU": 4.0}]
    assert pack(bundles, "STRICT_SPREAD", rooms) == [0, 1]
    assert pack([*bundles, {"GPU": 1.0}], "STRICT_SPREAD", [*rooms, {"CPU": 9.0}]) is None


def test_what_one_after_another_does_not_fit_is_searched_for() -> None:
    """Largest first puts 3 and 3 on the first node; only 3+2+2 and 3+2+2 do."""
    bundles = cpus(3, 3, 2, 2, 2, 2)
    found = pack(bundles, "PACK", cpus(7, 7))
    assert found is not None
    assert taken(bundles, found) == {0: {"CPU": 7.0}, 1: {"CPU": 7.0}}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_nodes_hold_no_bundle(strategy: str) -> None:
    assert pack(cpus(1), strategy, []) is None
    assert never_fits(cpus(1), strategy, [])


def test_a_search_that_takes_too_long_has_no_result() -> None:
    """Two to a node, and one node too few: to see that, one would have to try all pairs."""
    bundles, rooms = cpus(*(3 + number / 20 for number in range(20))), cpus(*[8.0] * 9)
    assert sum(one["CPU"] for one in bundles) < 72
    assert pack(bundles, "PACK", rooms) is None
    assert not never_fits(bundles, "PACK", rooms)


def test_more_bundles_than_are_searched_are_not_given_up_for_good() -> None:
    """65 of 3 on 60 nodes of 5, and 60 that are too small: one each, and five are left over."""
    rooms = cpus(*[5.0] * 60, *[2.0] * 60)
    assert pack(cpus(*[3.0] * 65), "PACK", rooms) is None
    assert not never_fits(cpus(*[3.0] * 65), "PACK", rooms)

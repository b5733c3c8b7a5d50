"""NeedIndex against a plain list, and its cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.scheduler.queue.need_index import NO_NUMBER, NeedIndex, amounts_of
from ray_multicluster_scheduler.scheduler.queue.shape import shape_of
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup
from tests.support.function_calls import count_calls
from tests.unit.lifecycle.driver import task

NAMES = ("CPU", "GPU")
amounts = st.integers(0, 6).map(float)
steps = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "hide"]), st.integers(0, 40), amounts, amounts, st.integers(0, 1000)),
    max_size=120,
)
rooms = st.lists(st.tuples(amounts, amounts), min_size=1, max_size=3)


def group(number: int) -> ShapeGroup:
    return ShapeGroup(shape_of(task(f"t{number}"), retry=False), 0)


@given(steps, rooms)
def test_it_finds_what_a_full_scan_finds(
    changes: list[tuple[str, int, float, float, int]], free: list[tuple[float, float]]
) -> None:
    index = NeedIndex(NAMES)
    groups = {number: group(number) for number in range(41)}
    needs: dict[int, tuple[float, float]] = {}
    firsts: dict[int, int] = {}
    for what, one, cpus, gpus, first in changes:
        if what == "put":
            needs.setdefault(one, (cpus, gpus))
            firsts[one] = first * 41 + one  # no two are equal
            index.update(groups[one], dict(zip(NAMES, needs[one], strict=True)), firsts[one])
        elif one in needs and what == "drop":
            index.remove(groups[one])
            del needs[one]
            firsts.pop(one, None)
        elif one in needs:
            index.update(groups[one], dict(zip(NAMES, needs[one], strict=True)), NO_NUMBER)
            firsts.pop(one, None)
        fitting = [
            (number, groups[name])
            for name, number in firsts.items()
            if any(all(need <= there for need, there in zip(needs[name], room, strict=True)) for room in free)
        ]
        vectors = [amounts_of(dict(zip(NAMES, room, strict=True)), NAMES) for room in free]
        assert index.first(vectors) == min(fitting, key=lambda pair: pair[0], default=None)
        everybody = [(number, groups[name]) for name, number in firsts.items()]
        assert index.first(None) == min(everybody, key=lambda pair: pair[0], default=None)
        assert len(index) == len(needs)


def test_groups_that_need_nothing() -> None:
    index = NeedIndex(())
    assert index.first([()]) is None
    one = group(1)
    index.update(one, {}, 7)
    assert index.first([()]) == (7, one)
    assert index.first([]) is None


def test_the_cost_of_a_search_hardly_grows() -> None:
    """Counted in function calls, which do not depend on how busy the machine is. Only the one that needs least fits."""

    def calls(size: int) -> int:
        index = NeedIndex(NAMES)
        for number in range(size):
            index.update(group(number), {"CPU": float(size - number), "GPU": float(number % 7)}, number)
        found = index.first([(1.0, 6.0)])
        assert found is not None
        assert found[0] == size - 1
        return count_calls(lambda: index.first([(1.0, 6.0)]))

    assert calls(4096) < 3 * calls(64)


def test_a_parked_group_stays_parked_when_the_tree_is_rebuilt() -> None:
    index = NeedIndex(("CPU",))
    groups = [group(number) for number in range(100)]
    index.update(groups[0], {"CPU": 1.0}, 0)
    index.update(groups[0], {"CPU": 1.0}, NO_NUMBER)
    for number, one in enumerate(groups[1:], start=1):
        index.update(one, {"CPU": 1.0}, number)
        assert index.first(None) == (1, groups[1])
    index.update(groups[0], {"CPU": 1.0}, 0)
    assert index.first(None) == (0, groups[0])

"""How 100 items spread over simulated clusters: evenly over equal ones, by weight and size over unequal ones."""

from __future__ import annotations

from collections import Counter

import pytest

from ray_multicluster_scheduler.simulation import Item, SimulatedCluster
from tests.unit.simulation.simulated_runs import SimulatedRun, exact, fleet

ITEMS = 100


def equal(count: int, cpus: int = 8) -> list[SimulatedCluster]:
    """Clusters that differ by a few MB of free memory only, as real ones do."""
    return [exact(f"c{number}", f"{{CPU:{cpus},memory:{8000 + number}MiB}}") for number in range(count)]


def jobs(gap_s: float = 0.0, run_s: float = 600.0) -> list[Item]:
    """Jobs without declared resources."""
    return [Item(gap_s * number, {}, run_s, kind="job") for number in range(ITEMS)]


def tasks(gap_s: float = 0.0, run_s: float = 10.0) -> list[Item]:
    return [Item(gap_s * number, {"CPU": 1.0}, run_s) for number in range(ITEMS)]


def spread(clusters: list[SimulatedCluster], items: list[Item]) -> Counter[str]:
    run = SimulatedRun(fleet(*clusters), *items)
    began = Counter(cluster for _, _, cluster, _ in run.began())
    assert began.total() == ITEMS
    return began


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize(
    "items",
    [jobs(), jobs(gap_s=1.0), jobs(gap_s=20.0, run_s=1.0), tasks(), tasks(gap_s=1.0), tasks(gap_s=20.0)],
    ids=["jobs-at-once", "jobs-that-overlap", "jobs-one-by-one", "tasks-at-once", "tasks-overlap", "tasks-one-by-one"],
)
def test_equal_clusters_get_equal_parts(count: int, items: list[Item]) -> None:
    parts = spread(equal(count), items)
    assert len(parts) == count
    assert max(parts.values()) - min(parts.values()) <= 1, parts


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [((1.0, 3.0), (8, 8)), ((1.0, 1.0), (8, 24)), ((1.0, 2.0, 7.0), (8, 8, 8)), ((1.0, 1.5), (8, 16))],
)
def test_jobs_spread_by_weight_and_size(weights: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    clusters = []
    for number, (weight, size) in enumerate(zip(weights, sizes, strict=True)):
        clusters.append(exact(f"c{number}", f"{{CPU:{size}}}", weight=weight, max_running_jobs=ITEMS))
    parts = spread(clusters, jobs())
    whole = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    for number, (weight, size) in enumerate(zip(weights, sizes, strict=True)):
        assert abs(parts[f"c{number}"] - ITEMS * weight * size / whole) <= 2, parts


def test_tasks_that_wait_for_room_spread_by_size() -> None:
    parts = spread([exact("small", "{CPU:4}"), exact("large", "{CPU:12}")], tasks())
    assert abs(parts["large"] - 75) <= 2, parts


def test_tasks_prefer_the_greater_weight_while_there_is_room() -> None:
    """Five at a time, on clusters that hold 8 each."""
    heavy = exact("heavy", "{CPU:8}", weight=2.0)
    parts = spread([exact("light", "{CPU:8}"), heavy], tasks(gap_s=2.0, run_s=10.0))
    assert 0 < parts["light"] < parts["heavy"]

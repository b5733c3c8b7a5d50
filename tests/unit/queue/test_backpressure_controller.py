"""What may still be used of a cluster: the same rule as the one that keeps work away from it, in amounts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NodeView
from ray_multicluster_scheduler.scheduler.queue.backpressure_controller import BackpressureController
from tests.unit.lifecycle.driver import task
from tests.unit.policy.views import node, view

GPU = task("g", requirements={"GPU": 1.0})
LIMITS = st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0])
AMOUNTS = st.integers(0, 10).map(float)


@st.composite
def nodes(draw: st.DrawFn) -> NodeView:
    total = {"CPU": 10.0, "GPU": 10.0, "memory": 10e9, "other": 1.0}
    free = {name: draw(AMOUNTS) / 10.0 * amount for name, amount in total.items()}
    over = {"CPU": draw(AMOUNTS)} if free["CPU"] == 0 else {}
    return NodeView(f"n{draw(st.integers())}", total, {}, {}, free, over)


@given(
    limits=st.fixed_dictionaries({"cpu": LIMITS, "gpu": LIMITS, "memory": LIMITS}),
    basis=st.sampled_from(["reserved", "observed", "max"]),
    observed=st.none() | st.dictionaries(st.sampled_from(["cpu", "gpu", "memory"]), AMOUNTS.map(lambda one: one / 10)),
    there=st.lists(nodes(), max_size=3),
    item=st.sampled_from([task("t"), GPU]),
)
def test_nothing_is_to_spare_where_the_cluster_takes_no_work(
    limits: dict[str, float],
    basis: str,
    observed: dict[str, float] | None,
    there: list[NodeView],
    item: TaskDescription,
) -> None:
    controller = BackpressureController(Settings(resource_threshold=limits, threshold_on=basis))  # type: ignore[arg-type]
    takes = controller.exceeded_threshold(item, view("c", nodes=tuple(there), observed=observed)) is None
    spare = controller.headroom(item, there, observed)
    assert takes is (spare is not None and all(amount >= 0 for amount in spare.values()))


@pytest.mark.parametrize(
    ("settings", "item", "expected"),
    [
        ({"resource_threshold": 0.5}, task("t"), {"CPU": -1.0}),
        ({"resource_threshold": 0.5}, GPU, {"CPU": -1.0, "GPU": 2.0}),
        ({"resource_threshold": {"cpu": 0.8}}, task("t"), {"CPU": 2.0}),
        ({"resource_threshold": 1}, task("t"), {}),
        ({"resource_threshold": 0.5, "threshold_on": "observed"}, task("t"), {}),
        ({"resource_threshold": 0.5, "threshold_on": "max"}, task("t"), {"CPU": -1.0}),
        ({"resource_threshold": 0.3, "threshold_on": "max"}, task("t"), None),
    ],
)
def test_headroom(settings: dict[str, Any], item: TaskDescription, expected: dict[str, float] | None) -> None:
    there = [node({"CPU": 10.0, "GPU": 4.0}, {"CPU": 4.0, "GPU": 4.0}), node({"CPU": 99.0}, unknown=True)]
    spare = BackpressureController(Settings(**settings)).headroom(item, there, {"cpu": 0.4})
    assert spare == (None if expected is None else pytest.approx(expected))

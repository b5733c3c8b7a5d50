"""The workload generator: distributions with the expected means, and errors for an invalid spec."""

from __future__ import annotations

import itertools
import math
from statistics import fmean, median
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.simulation import Synthetic
from tests.unit.simulation.simulated_runs import exact, fleet


def made(text: str, seed: int = 1) -> list[Any]:
    return list(Synthetic.parse(text).generate(seed))


@pytest.mark.parametrize(
    ("run", "figure", "expected"),
    [
        ("constant:30", fmean, 30),
        ("uniform:10,30", fmean, 20),
        ("exponential:40", fmean, 40),
        ("lognormal:60,1.5", median, 60),
        ("lognormal:1min", median, 60),
        ("pareto:10,2", median, 10 * math.sqrt(2)),
    ],
)
def test_run_times(run: str, figure: Any, expected: float) -> None:
    times = [item.run_s for item in made(f"items=4000 run={run}")]
    assert figure(times) == pytest.approx(expected, rel=0.08)


def test_a_pareto_may_be_cut() -> None:
    times = [item.run_s for item in made("items=2000 run=pareto:10,1.1,100")]
    assert (min(times) >= 10, max(times)) == (True, 100)


class TestArrivals:
    def test_poisson(self) -> None:
        times = [item.submit_s for item in made("items=4000 over=1h arrivals=poisson")]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert times[-1] == pytest.approx(3600, rel=0.06)
        assert fmean(gap * gap for gap in gaps) == pytest.approx(2 * fmean(gaps) ** 2, rel=0.1)  # as exponential ones

    def test_uniform(self) -> None:
        assert [item.submit_s for item in made("items=4 over=8s arrivals=uniform")] == [0, 2, 4, 6]

    def test_bursts(self) -> None:
        assert [item.submit_s for item in made("items=6 over=30s arrivals=bursts:3")] == [0, 0, 10, 10, 20, 20]

    def test_daily(self) -> None:
        times = [item.submit_s % 86400 for item in made("items=4000 over=2d arrivals=daily:1")]
        by_day = sum(21600 <= at < 64800 for at in times) / len(times)
        assert by_day == pytest.approx(0.5 + 1 / math.pi, abs=0.03)


def test_shares_match_the_weights() -> None:
    items = made(
        "items=4000 sizes=1:3,2:1 wide=0.2:16 gpus=0.1:2 owners=ann:2,bob:1 priorities=0:9,7.5:1 kinds=task:3,job:1 "
        "tags=x:0.5 require=y:0.25 fails=0.1 memory=1GiB functions=3"
    )

    def share(test: Any) -> float:
        return sum(map(bool, map(test, items))) / len(items)

    assert share(lambda one: one.needs["CPU"] == 16) == pytest.approx(0.2, abs=0.02)
    assert share(lambda one: one.needs["CPU"] == 1) == pytest.approx(0.6, abs=0.03)
    assert share(lambda one: one.needs.get("GPU") == 2) == pytest.approx(0.1, abs=0.02)
    assert share(lambda one: one.owner == "ann") == pytest.approx(2 / 3, abs=0.03)
    assert share(lambda one: one.priority == 7.5) == pytest.approx(0.1, abs=0.02)
    assert share(lambda one: one.kind == "job") == pytest.approx(0.25, abs=0.03)
    assert share(lambda one: "x" in one.tags) == pytest.approx(0.5, abs=0.03)
    assert share(lambda one: "y" in one.require_tags) == pytest.approx(0.25, abs=0.03)
    assert share(lambda one: one.fails) == pytest.approx(0.1, abs=0.02)
    assert share(lambda one: one.needs["memory"] == 1024**3) == 1
    assert {one.function for one in items} == {"f0", "f1", "f2"}


def test_a_gang_has_members_and_others_have_not() -> None:
    items = made("items=50 kinds=task,gang members=3")
    assert {(one.kind, one.members) for one in items} == {("task", 1), ("gang", 3)}


def test_load_is_work_by_capacity() -> None:
    where = fleet(exact("a", "2x{CPU:8}"), exact("b", "{CPU:16}@2"))
    work = Synthetic.parse("load=0.9 over=1h run=exponential:60").generate(1, where)
    assert where.capacity() == 48
    assert work.work() / (48 * 3600) == pytest.approx(0.9, rel=0.01)


def test_properties_are_drawn_independently() -> None:
    plain, tagged = made("items=100"), made("items=100 tags=x:0.5 owners=ann,bob")
    assert [(one.submit_s, one.run_s, one.needs) for one in plain] == [
        (one.submit_s, one.run_s, one.needs) for one in tagged
    ]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("", "needs either items or load"),
        ("items=5 load=0.5", "needs either items or load"),
        ("load=0.5", "load= needs a fleet"),
        ("items=0", "0 items"),
        ("items=many", "items=many is not a number"),
        ("items=2.5", "items=2.5 is not a number"),
        ("items=5 items=6", "items is given twice"),
        ("items=5 speed=2", "'speed=2' is not one of its key=value pairs."),
        ("itmes=5", "'itmes=5' is not one of its key=value pairs (did you mean 'items'?)."),
        ("items=5 over=0", "over=0"),
        ("items=5 over=soon", "'soon' is not a time"),
        ("items=5 run=gauss:3", "run=gauss: there is no such distribution"),
        ("items=5 run=uniform:3", "uniform takes least,most"),
        ("items=5 run=uniform:3,1", "run=uniform:3,1"),
        ("items=5 run=constant:0", "run=constant:0"),
        ("items=5 arrivals=tides", "arrivals=tides: there is no such distribution"),
        ("items=5 arrivals=poisson:3", "poisson takes no number"),
        ("items=5 arrivals=bursts:0", "arrivals=bursts:0"),
        ("items=5 sizes=big", "sizes=big is not a choice"),
        ("items=5 sizes=1:0", "sizes=1:0 is not a choice"),
        ("items=5 kinds=pod", "kinds=pod is not a choice"),
        ("items=5 wide=0.2", "wide=0.2 is not share:amount"),
        ("items=5 wide=x", "wide=x is not share:amount"),
        ("items=5 tags=x", "tags=x is not tag:share"),
        ('items=5 owners="ann', "No closing quotation"),
    ],
)
def test_an_invalid_spec_is_refused_with_a_sentence(text: str, output: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(text)
    assert output in caught.value.message
    assert caught.value.next_step


@pytest.mark.parametrize("load", ["1000000", "1e9"])
def test_a_load_of_too_many_items_is_refused_early(load: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot have .* items"):
        Synthetic.parse(f"load={load} over=24h").generate(1, fleet(exact("a", "{CPU:8}")))


def test_an_empty_load() -> None:
    with pytest.raises(ConfigurationError, match="load=0.0"):
        Synthetic.parse("load=0").generate(1, fleet(exact("a", "{CPU:1}")))

"""The preset of examples/resident_elastic.yaml: resident clusters are filled before elastic ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ray_multicluster_scheduler.control_plane.config.fleet_config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.loader import load_config
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.policy.resident_policy import ResidentPolicy
from tests.unit.lifecycle.driver import Driver, task
from tests.unit.policy.views import node, view

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "resident_elastic.yaml"


@pytest.fixture
def fleet() -> FleetConfig:
    return load_config(EXAMPLE, environ={})


def drive(fleet: FleetConfig, **sizes: float) -> Driver:
    """A machine with the clusters and settings of the file, each cluster linked and idle with so many CPUs."""
    driver = Driver()
    driver.machine = SchedulerMachine(fleet.settings, [one.metadata() for one in fleet.clusters])
    for name, size in sizes.items():
        driver.link_up(name, size)
    return driver


@pytest.mark.parametrize(
    ("tags", "score"),
    [
        (("resident",), 1.0),
        (("elastic",), 0.0),
        ((), 0.5),
        (("linux", "resident"), 1.0),
        (("resident", "elastic"), 0.5),
    ],
)
def test_the_score(tags: tuple[str, ...], score: float) -> None:
    assert ResidentPolicy().score(task("t"), view(tags=tags)) == score


def test_the_small_resident_cluster_comes_before_the_large_elastic_one(fleet: FleetConfig) -> None:
    brain = PolicyEngine(fleet.settings)
    small, large = view("hall", tags=("resident",)), view("cloud", node({"CPU": 512.0}), tags=("elastic",))
    decision = brain.schedule(task("t"), [large, small], 0.0)
    assert decision.cluster == "hall"
    assert [row.scores["resident"] for row in decision.candidates] == [0.0, 1.0]


def test_load_decides_among_residents_only(fleet: FleetConfig) -> None:
    brain = PolicyEngine(fleet.settings)
    one = view("one", node({"CPU": 10.0}, {"CPU": 3.0}), tags=("resident",))
    two = view("two", node({"CPU": 10.0}, {"CPU": 6.0}), tags=("resident",))
    neither = view("neither", node({"CPU": 90.0}))
    assert brain.schedule(task("t"), [one, two, neither], 0.0).cluster == "two"


def test_residents_fill_up_to_the_threshold_before_anything_goes_to_the_cloud(fleet: FleetConfig) -> None:
    driver = drive(fleet, hall=10, lab=10, cloud=100)
    for number in range(30):
        driver.submit(task(f"t{number}"))
    order = list(driver.sent_to().values())
    # Above 80 % in use a resident cluster takes nothing: the ninth CPU of ten is the last one given.
    assert Counter(order) == {"hall": 9, "lab": 9, "cloud": 12}
    assert "cloud" not in order[:18]


def test_room_that_residents_get_back_is_used_first(fleet: FleetConfig) -> None:
    driver = drive(fleet, hall=10, lab=10, cloud=100)
    for number in range(20):
        driver.submit(task(f"t{number}"))
    there = next(name for name, where in driver.sent_to().items() if where == "lab")
    driver.succeed(there)
    driver.submit(task("late"))
    assert driver.sent_to()["late"] == "lab"


def test_an_item_may_still_ask_for_the_cloud(fleet: FleetConfig) -> None:
    driver = drive(fleet, hall=10, lab=10, cloud=100)
    driver.submit(task("t", preferred_cluster="cloud"))
    assert driver.sent_to() == {"t": "cloud"}
    driver.submit(task("wide", cpus=12))  # fits no resident node
    assert driver.sent_to()["wide"] == "cloud"

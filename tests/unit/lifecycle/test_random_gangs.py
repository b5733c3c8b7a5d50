"""Whatever gangs come, start and end: no node ever holds more than it has, and nothing is left over."""

from __future__ import annotations

import random

import pytest

from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from tests.unit.lifecycle.driver import Driver, cluster, task
from tests.unit.lifecycle.gangs import gang

SIZES = {"a": (4, 4, 8), "b": (2, 2)}
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def an_item(dice: random.Random, number: int) -> TaskDescription:
    if dice.random() < 0.3:
        return task(f"t{number}", dice.randint(1, 4))
    needs = [dice.randint(1, 4) for _ in range(dice.randint(1, 4))]
    return gang(f"g{number}", *needs, strategy=dice.choice(STRATEGIES), retries=dice.randint(0, 2))


def check_books(driver: Driver) -> None:
    for name in SIZES:
        state = driver.machine.registry.state(name)
        held: dict[str, float] = {}
        for reservation in state.ledger.reservations.values():
            for node_id, amounts in reservation.parts.items():
                held[node_id] = held.get(node_id, 0.0) + amounts.get("CPU", 0.0)
        for node in state.ledger.nodes():
            assert held.get(node.node_id, 0.0) <= node.total["CPU"] + 1e-6
            assert (node.free or {})["CPU"] == pytest.approx(node.total["CPU"] - held.get(node.node_id, 0.0))


def obeyed(driver: Driver, item: TaskDescription) -> None:
    """What was reserved is what its strategy allows."""
    record = driver.machine.record(item.id)
    if item.gang is None or record.cluster is None:
        return
    parts = driver.machine.registry.state(record.cluster).ledger.reservations[item.id].parts
    assert sum(amounts["CPU"] for amounts in parts.values()) == item.requirements["CPU"]
    if item.gang.strategy == "STRICT_PACK":
        assert len(parts) == 1
    if item.gang.strategy == "STRICT_SPREAD":
        assert len(parts) == len(item.gang.members)


@pytest.mark.parametrize("seed", range(30))
def test_never_over_capacity_and_nothing_is_left(seed: int) -> None:
    dice = random.Random(seed)
    driver = Driver(*(cluster(name) for name in SIZES))
    for name, sizes in SIZES.items():
        driver.link_up(name, *sizes)
    items: dict[str, TaskDescription] = {}
    for number in range(40):
        item = items[f"{number}"] = an_item(dice, number)
        driver.submit(item)
        check_books(driver)
        if driver.state(item.id) is TaskState.DISPATCHING:
            obeyed(driver, item)
        live = [one.id for one in items.values() if driver.machine.record(one.id).live]
        for task_id in dice.sample(live, min(len(live), dice.randint(0, 2))):
            end(driver, dice, task_id)
            check_books(driver)
    for _ in range(1000):
        waiting = [one.id for one in items.values() if not driver.state(one.id).terminal]
        if not waiting:
            break
        for task_id in waiting:
            if driver.state(task_id) is TaskState.RETRYING:
                driver.fire(f"retry:{task_id}", after=100)
            elif driver.machine.record(task_id).live:
                end(driver, dice, task_id)
        check_books(driver)
    assert all(driver.state(one.id).terminal for one in items.values()), "every gang found its place in the end"
    for name, sizes in SIZES.items():
        nodes = driver.machine.registry.state(name).ledger.nodes()
        assert [(node.free or {})["CPU"] for node in nodes] == list(sizes)


def end(driver: Driver, dice: random.Random, task_id: str) -> None:
    outcome = dice.choice(("succeed", "fail", "cancel"))
    if outcome == "succeed":
        driver.succeed(task_id)
    elif outcome == "fail":
        driver.fail(task_id)
    else:
        driver.cancel(task_id)
        driver.stopped(task_id)

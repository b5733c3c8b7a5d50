"""Seeded walks in which the control plane dies at any moment and goes on from its rows."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ItemRow
from tests.unit.lifecycle.crashing_fleet import CrashingFleet
from tests.unit.lifecycle.fake_fleet import fleet_of
from tests.unit.lifecycle.test_random_walk import STYLES, fault_or_fact, some_settings

STEPS = 150
SEEDS = range(24)


def walk(seed: int) -> CrashingFleet:
    chance = Random(seed)
    settings = some_settings(chance)
    fleet = CrashingFleet(SchedulerMachine(settings, fleet_of("a", "b", "c")), chance, settings=settings)
    for number in range(STEPS):
        fault_or_fact(fleet, chance, number, STYLES[seed % 3])
        luck = chance.random()
        if luck < 0.02:
            fleet.crash()
        elif luck < 0.04:
            fleet.dies_at_next = True
    return fleet


@pytest.mark.parametrize("seed", SEEDS)
def test_every_item_ends_once_however_often_the_control_plane_dies(seed: int) -> None:
    fleet = walk(seed)
    fleet.settle()
    fleet.check_all_ended()
    for state in fleet.machine.registry:
        assert state.ledger.reservations == {}
        assert (state.slots.held, state.slots.prefetched) == ({}, {})


def lasting(row: ItemRow) -> ItemRow:
    """Without the steps that a machine adds when it looks at the queue again."""
    steps = tuple(step for step in row.history if step.state is not TaskState.QUEUED)
    return replace(row, history=steps, decision=None)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_machine_made_from_the_rows_has_the_same_rows(seed: int) -> None:
    fleet = walk(seed)
    fleet.advance(0.0)
    before = {record.task.id: fleet.machine.row(record.task.id) for record in fleet.machine.records()}
    assert {name: lasting(row) for name, row in before.items()} == {
        name: lasting(row) for name, row in fleet.rows.items()
    }, "something changed, and nobody was asked to remember it"
    after = SchedulerMachine(fleet.settings, fleet.machine.registry.list())
    rows = (fleet.machine.cluster_rows(), fleet.machine.owner_rows(), fleet.machine.pool_rows())
    after.handle(events.Restored(tuple(before.values()), *rows), fleet.now)
    assert {record.task.id: lasting(after.row(record.task.id)) for record in after.records()} == {
        name: lasting(row) for name, row in before.items()
    }
    assert (after.cluster_rows(), after.owner_rows(), after.pool_rows()) == rows
    assert after.queue_depths() == fleet.machine.queue_depths()
    assert after._state.next_fence == fleet.machine._state.next_fence
    assert after._state.held_items == fleet.machine._state.held_items


def test_the_walks_meet_enough_crashes() -> None:
    assert sum(walk(seed).crashes for seed in range(10)) > 30

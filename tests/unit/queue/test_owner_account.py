"""What one owner may have, in words."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding, OwnerAccount, holding_of


@pytest.mark.parametrize(
    ("account", "held", "sentence"),
    [
        (OwnerAccount(max_running=0), 0, "none of its items may start, as its max_running is 0"),
        (OwnerAccount(max_gpus=0), 0, "none of its items that need a GPU may start, as its max_gpus is 0"),
        (OwnerAccount(max_running=2), 2, "2 of its items are on clusters; its max_running is 2"),
        (OwnerAccount(max_gpus=2), 2, "it holds 2 GPUs; its max_gpus is 2"),
    ],
)
def test_limits_in_words(account: OwnerAccount, held: int, sentence: str) -> None:
    for _ in range(held):
        account.charge(Holding(0.1, 1.0), 0.0)
    assert account.refusal(1.0) == sentence


@pytest.mark.parametrize(
    ("needs", "cost", "gpus"),
    [
        ({"CPU": 2.0}, 0.25, 0.0),
        ({"CPU": 2.0, "GPU": 1.0}, 0.5, 1.0),  # the largest part of anything
        ({"CPU": 4.0, "GPU": 0.5}, 0.5, 0.5),
        ({"tpu": 3.0}, 0.0, 0.0),  # nobody has one
        ({}, 0.125, 0.0),  # it takes something, nobody knows what: as one CPU
    ],
)
def test_cost_of_an_item(needs: dict[str, float], cost: float, gpus: float) -> None:
    item = TaskDescription("t", "task", "t", needs)
    assert holding_of(item, {"CPU": 8.0, "GPU": 2.0}, 7.0) == Holding(cost, gpus, 7.0)

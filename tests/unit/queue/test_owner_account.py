"""What one owner may have, in words."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding, OwnerAccount


@pytest.mark.parametrize(
    ("account", "held", "sentence"),
    [
        (OwnerAccount(max_running=0), 0, "nothing of it may start, as its max_running is 0"),
        (OwnerAccount(max_gpus=0), 0, "nothing of it that needs a GPU may start, as its max_gpus is 0"),
        (OwnerAccount(max_running=2), 2, "2 of its items are on clusters; its max_running is 2"),
        (OwnerAccount(max_gpus=2), 2, "it holds 2 GPUs; its max_gpus is 2"),
    ],
)
def test_limits_in_words(account: OwnerAccount, held: int, sentence: str) -> None:
    for _ in range(held):
        account.take(Holding(0.1, 1.0), 0.0)
    assert account.refusal(1.0) == sentence

"""A process that keeps most of what it makes looks for garbage less often, and still finds it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from ray_multicluster_scheduler.common.process import reduce_gc


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Node:
    other: Node


def test_cycles_that_come_later_are_found_without_being_asked_for() -> None:
    reduce_gc()
    assert gc.get_freeze_count() > 0
    first, first.other = (node := Node()), node
    gone = weakref.ref(first)
    del first, node
    kept = []
    while gone() is not None:
        kept.append([])  # type: ignore[var-annotated]  # what is in them does not matter
        assert len(kept) < 1_000_000

"""IdempotencyIndex: which item a submission repeats, and which ids and keys are refused."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime.idempotency import IdempotencyIndex
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from tests.unit.lifecycle.driver import job, task


@pytest.fixture
def records() -> dict[str, TaskRecord]:
    return {}


@pytest.fixture
def index(records: dict[str, TaskRecord]) -> IdempotencyIndex:
    return IdempotencyIndex(records.get)


def added(index: IdempotencyIndex, task: TaskDescription, *, match_content: bool = True) -> Item:
    item = Item(task)
    index.add(item, match_content=match_content)
    return item


def test_an_unknown_submission_repeats_nothing(index: IdempotencyIndex) -> None:
    added(index, task("a", idempotency_key="k", content_key="c"))
    assert index.find(task("b", idempotency_key="other", content_key="other")) is None
    assert index.find(task("b")) is None
    assert index.get("b") is None


def test_it_finds_by_id_by_key_and_by_content(index: IdempotencyIndex) -> None:
    first = added(index, task("a", name="n", idempotency_key="k", content_key="c"))
    assert index.find(task("a", name="n")) is first
    assert index.find(task("b", name="n", idempotency_key="k")) is first
    assert index.find(task("b", name="n", content_key="c")) is first
    assert index.by_key(first.task.owner, "k") is first
    assert list(index.live) == ["a"]


def test_a_key_belongs_to_its_owner(index: IdempotencyIndex) -> None:
    first = added(index, task("a", idempotency_key="k"))
    assert index.by_key("somebody-else", "k") is None
    assert index.find(replace(task("b", idempotency_key="k"), owner="somebody-else")) is None
    assert index.find(task("b", name=first.task.name, idempotency_key="k")) is first


def test_a_key_takes_precedence_over_an_id(index: IdempotencyIndex) -> None:
    by_key = added(index, task("a", name="n", idempotency_key="k"))
    added(index, task("b", name="n"))
    assert index.find(task("b", name="n", idempotency_key="k")) is by_key


def test_an_id_of_a_different_item_is_refused(index: IdempotencyIndex) -> None:
    added(index, job("a"))
    with pytest.raises(ConfigurationError) as refused:
        index.find(task("a"))
    assert refused.value.task_id == "a"


def test_an_id_with_only_a_record_is_refused(index: IdempotencyIndex, records: dict[str, TaskRecord]) -> None:
    records["a"] = TaskRecord(task("a"), 1)
    with pytest.raises(ConfigurationError) as refused:
        index.find(task("a"))
    assert refused.value.task_id == "a"


def test_content_is_matched_until_it_is_stopped(index: IdempotencyIndex) -> None:
    first = added(index, task("a", content_key="c"))
    index.stop_matching_content(first.task)
    assert index.find(task("b", content_key="c")) is None
    second = added(index, task("b", content_key="c"))
    index.stop_matching_content(first.task)  # the content belongs to the second item now
    assert index.find(task("c", content_key="c")) is second


def test_content_of_an_item_that_is_being_cancelled_is_not_matched(index: IdempotencyIndex) -> None:
    added(index, task("a", content_key="c"), match_content=False)
    assert index.find(task("b", content_key="c")) is None


def test_a_finished_item_is_found_by_id_and_key_and_not_by_content(index: IdempotencyIndex) -> None:
    first = added(index, task("a", name="n", idempotency_key="k", content_key="c"))
    index.finish(first, retain=False)
    assert not index.live
    assert index.find(task("b", name="n", idempotency_key="k")) is first
    assert index.get("a") is first
    assert index.find(task("b", content_key="c")) is None


@pytest.mark.parametrize("retain", [True, False])
def test_only_a_retained_item_outlives_its_handles(index: IdempotencyIndex, retain: bool) -> None:
    index.finish(added(index, task("a", idempotency_key="k")), retain=retain)
    gc.collect()
    assert (index.get("a") is not None) is retain
    assert (index.by_key(task("a").owner, "k") is not None) is retain


def test_a_forgotten_item_frees_its_id_and_key(index: IdempotencyIndex) -> None:
    first = added(index, task("a", name="n", idempotency_key="k"))
    index.finish(first, retain=True)
    index.forget(first.task)
    assert index.get("a") is None
    assert index.find(job("a")) is None
    assert index.find(task("b", name="n", idempotency_key="k")) is None

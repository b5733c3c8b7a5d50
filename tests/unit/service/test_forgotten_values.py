"""A value that is not kept any more: whoever asks is told so, and nothing else stops because of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.handles.item import Item
from ray_multicluster_scheduler.app.client_api.handles.outcome import VALUE_FORGOTTEN, value_of
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ResultLostError
from ray_multicluster_scheduler.common.model import TaskState
from tests.unit.service.service_plane import ServicePlane, a_task, running

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ServicePlane]:
    with ServicePlane(tmp_path / "state", kept_finished=0) as plane:
        yield plane


def forget_values(plane: ServicePlane) -> None:
    plane.store.strip(math.inf)
    plane.store.drop_blobs()
    plane.store.drop_blobs()  # what was put lately is spared once


def over(plane: ServicePlane, task_id: str, value: object) -> None:
    plane.finish(running(plane.taken(a_task(task_id))), pickling.dumps(value))


def test_a_value_that_is_not_kept_any_more_is_lost_and_its_story_is_not(plane: ServicePlane) -> None:
    over(plane, "t", "value")
    forget_values(plane)
    found = plane.look("t")
    assert isinstance(found, Item)
    assert found.state is TaskState.SUCCEEDED
    assert found.outcome is not None
    assert found.outcome.result is not None
    assert found.outcome.result.code == VALUE_FORGOTTEN
    with pytest.raises(ResultLostError, match="keep_payloads_s"):
        value_of(found.outcome)


def test_one_that_never_had_a_value_has_lost_none(plane: ServicePlane) -> None:
    plane.finish(running(plane.taken(a_task("t"))), None)
    forget_values(plane)
    found = plane.look("t")
    assert found is not None
    assert found.outcome is not None
    assert value_of(found.outcome) is None

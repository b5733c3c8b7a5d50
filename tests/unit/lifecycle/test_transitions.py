"""The state table, exhaustively."""

from __future__ import annotations

from itertools import product

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import LEGAL, LIVE, IllegalTransitionError, check
from tests.unit.lifecycle.driver import task

# One line per state, written down a second time on purpose: a change of the table has to be meant.
EXPECTED = {
    "PENDING": "PENDING QUEUED FAILED CANCELLED",
    "QUEUED": "QUEUED DISPATCHING FAILED CANCELLED",
    "DISPATCHING": "DISPATCHING RUNNING QUEUED RETRYING LOST FAILED CANCELLED",
    "RUNNING": "RUNNING PREEMPTING RETRYING LOST SUCCEEDED FAILED CANCELLED",
    "PREEMPTING": "PREEMPTING QUEUED RETRYING LOST SUCCEEDED FAILED CANCELLED",
    "RETRYING": "QUEUED FAILED CANCELLED",
    "LOST": "LOST DISPATCHING RUNNING PREEMPTING QUEUED RETRYING FAILED CANCELLED",
    "SUCCEEDED": "",
    "FAILED": "",
    "CANCELLED": "",
}


@pytest.mark.parametrize(("before", "after"), list(product(TaskState, TaskState)))
def test_exactly_the_steps_of_the_table_are_legal(before: TaskState, after: TaskState) -> None:
    if after in EXPECTED[before].split():
        check("t", before, after)
    else:
        with pytest.raises(IllegalTransitionError, match=f"t: {before} → {after}"):
            check("t", before, after)


def test_nothing_follows_an_end_and_every_state_leads_to_one() -> None:
    for state in TaskState:
        assert state.terminal == (not LEGAL[state])
        assert state.terminal or {TaskState.FAILED, TaskState.CANCELLED} <= LEGAL[state]
    assert all(TaskState.LOST in LEGAL[state] for state in LIVE)


def test_success_is_reached_only_from_what_runs() -> None:
    assert {one for one in TaskState if TaskState.SUCCEEDED in LEGAL[one]} == {TaskState.RUNNING, TaskState.PREEMPTING}


def test_a_record_refuses_an_illegal_step_and_keeps_its_state() -> None:
    record = TaskRecord(task("t"), 1)
    record.step(TaskState.PENDING, "SUBMITTED", "", 1.0)
    with pytest.raises(IllegalTransitionError):
        record.step(TaskState.RUNNING, "STARTED", "", 2.0)
    assert record.state is TaskState.PENDING
    assert len(record.history) == 1

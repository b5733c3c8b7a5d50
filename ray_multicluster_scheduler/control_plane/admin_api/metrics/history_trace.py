"""What a service has run, as a trace that `rmcs simulate` takes: would another fleet, or another policy, do better?"""

from __future__ import annotations

from collections.abc import Iterator

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store import ItemQuery as Query
from ray_multicluster_scheduler.control_plane.store import Store, StoredItem
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_rows import task_of
from ray_multicluster_scheduler.simulation.workloads.workload import Item

PAGE = 500
"""So many items are in memory at once, whatever there is in all."""
_OWN_FAULTS = frozenset({"USER_ERROR", "JOB_FAILED"})
_OVER = tuple(state for state in TaskState if state.terminal)


def history_trace(store: Store, owner: str | None = None) -> Iterator[list[Item]]:
    """Everything of everybody, or of this owner, that is over and was seen to run, page by page in the order in which
    it was accepted; times count from the first of them.

    How long something ran is taken from its last attempt, on the cluster that it ran on: speeds are not known here.
    What failed in the end fails there, too, unless it is tried more often.
    """
    first = store.oldest_completed_run(owner) or 0.0
    after: int | None = None
    while True:
        page = store.items(Query(states=_OVER, owner=owner, after=after, limit=PAGE, oldest_first=True))
        yield [item for row in page.items if (item := _item(store, row, first)) is not None]
        after = page.after
        if after is None:
            return


def _item(store: Store, row: StoredItem, first: float) -> Item | None:
    task, _ = task_of(row)
    steps = store.steps(task.id)
    began = next((one.at for one in reversed(steps) if one.state is TaskState.RUNNING), None)
    ended = row.status.finished_at
    if began is None or ended is None:
        return None
    gang = task.gang
    needs = task.placement if gang is None else gang.members[0].requirements
    fails = sum(one.state is TaskState.RETRYING and one.code in _OWN_FAULTS for one in steps)
    if row.status.state is TaskState.FAILED:  # for whatever reason: it did not succeed after that either
        fails += 1
    return Item(
        submit_s=max(0.0, row.new.submitted_at - first),  # one that was submitted before may have ended only now
        needs=dict(needs),
        run_s=max(0.0, ended - began),
        owner=task.owner,
        priority=task.priority,
        tags=task.tags,
        require_tags=task.require_tags,
        kind=task.kind,
        function=task.name.replace("\n", " "),
        members=1 if gang is None else len(gang.members),
        fails=fails,
    )

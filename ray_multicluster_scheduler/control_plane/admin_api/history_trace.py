"""What a service has run, as a trace that `rmcs simulate` takes: would another fleet, or another policy, do better?"""

from __future__ import annotations

from dataclasses import replace

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store import Store, StoredItem
from ray_multicluster_scheduler.control_plane.store import Wanted as Query
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_rows import task_of
from ray_multicluster_scheduler.simulation.workload import Item

_OVER = tuple(state for state in TaskState if state.terminal)
_PAGE = 1000


def history_trace(store: Store, owner: str | None = None) -> list[Item]:
    """Everything of everybody, or of this owner, that is over and was seen to run, oldest first; times count from the
    first of them.

    How long something ran is taken from its last attempt, on the cluster that it ran on: speeds are not known here.
    """
    rows: list[StoredItem] = []
    after: int | None = None
    while True:
        page = store.items(Query(states=_OVER, owner=owner, after=after, limit=_PAGE))
        rows += page.items
        after = page.after
        if after is None:
            break
    found = [item for row in reversed(rows) if (item := _item(store, row)) is not None]
    found.sort(key=lambda one: one[0])
    first = found[0][0] if found else 0.0
    return [replace(item, submit_s=submitted - first) for submitted, item in found]


def _item(store: Store, row: StoredItem) -> tuple[float, Item] | None:
    task, _ = task_of(row)
    steps = store.steps(task.id)
    began = next((one.at for one in reversed(steps) if one.state is TaskState.RUNNING), None)
    ended = row.now.finished_at
    if began is None or ended is None:
        return None
    gang = task.gang
    needs = task.placement if gang is None else gang.members[0].requirements
    fails = sum(one.state is TaskState.RETRYING and one.code == "USER_ERROR" for one in steps)
    return row.new.submitted_at, Item(
        submit_s=0.0,
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

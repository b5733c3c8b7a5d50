"""history_trace(): the past work of a service as a workload for `rmcs simulate`, to compare fleets and policies."""

from __future__ import annotations

from collections.abc import Iterator

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.store import ItemQuery as Query
from ray_multicluster_scheduler.control_plane.store import Store, StoredItem
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_task
from ray_multicluster_scheduler.simulation.workloads.workload import Item, Outcome

PAGE = 500
"""Number of items in memory at once."""
_OWN_FAULTS = frozenset({"USER_ERROR", "JOB_FAILED"})
_OUTCOMES: dict[TaskState, Outcome] = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.FAILED: "failed",
    TaskState.CANCELLED: "cancelled",
}


def history_trace(store: Store, owner: str | None = None) -> Iterator[list[Item]]:
    """All finished items that ran, of this owner or of all, in pages in the order of acceptance. Times count from the
    first one.

    The duration is that of the last attempt on its cluster, since speeds of clusters are not known here. An item ends
    in the simulation as it ended here.
    """
    first = store.oldest_completed_run(owner) or 0.0
    after: int | None = None
    while True:
        page = store.items(Query(states=tuple(_OUTCOMES), owner=owner, after=after, limit=PAGE, oldest_first=True))
        yield [item for row in page.items if (item := _item(store, row, first)) is not None]
        after = page.after
        if after is None:
            return


def _item(store: Store, row: StoredItem, first: float) -> Item | None:
    task, _ = decode_task(row)
    steps = store.steps(task.id)
    began = next((one.at for one in reversed(steps) if one.state is TaskState.RUNNING), None)
    ended = row.status.finished_at
    if began is None or ended is None:
        return None
    gang = task.gang
    needs = task.placement if gang is None else gang.members[0].requirements
    fails = sum(one.state is TaskState.RETRYING and one.code in _OWN_FAULTS for one in steps)
    if row.status.state is TaskState.FAILED:  # for any reason: a further attempt would not have succeeded
        fails += 1
    return Item(
        submit_s=max(0.0, row.new.submitted_at - first),  # an earlier submission may appear on a later page
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
        outcome=_OUTCOMES[row.status.state],
    )

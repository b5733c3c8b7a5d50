"""StoredHistory: rebuilds finished items, their explanations and job rows from the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.runtime.explanation import job_document, member_summary, repeats_of
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import VALUE_FORGOTTEN
from ray_multicluster_scheduler.control_plane.store import Store, StoredItem
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import attempts_of, shown_history
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import (
    decode_completion,
    decode_result,
    decode_row,
    decode_task,
    had_value,
    pool_fields_of,
)


class StoredHistory:
    """Reads the disk: never call it on the loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def item(self, stored: StoredItem) -> Item:
        """A finished item with its outcome."""
        task, _ = decode_task(stored)
        item = Item(task)
        steps = self._store.steps(task.id)
        if steps:
            item.transition = decode_row(stored, steps, None).history[-1]
        completion = decode_completion(stored)
        if completion is None:
            raise SchedulerError(f"{task.id} is not over in the store, but not in memory.", task_id=task.id)
        Promise.ended(item, Outcome(completion, self._result(stored, completion)))
        return item

    def _result(self, stored: StoredItem, completion: Complete) -> CallResult | None:
        outcome = self._store.outcome(stored.new.id)
        if outcome is None or outcome.attempt != completion.attempt:
            return None
        payload = None if outcome.digest is None else self._store.blob(outcome.digest)
        result = decode_result(outcome, payload)
        return replace(result, code=VALUE_FORGOTTEN) if payload is None and had_value(outcome) else result

    def explanation(self, stored: StoredItem) -> dict[str, Any]:
        """How a finished item came to its end."""
        steps, decisions = self._store.steps(stored.new.id), self._store.decisions(stored.new.id)
        row = decode_row(stored, steps, decisions[-1] if decisions else None)
        last, completion = row.history[-1], decode_completion(stored)
        fences = dict(enumerate((*row.earlier_fences, row.fence or 0), start=1))
        return {
            "id": stored.new.id,
            "kind": stored.new.kind,
            "name": stored.new.name,
            "owner": stored.new.owner,
            "priority": row.priority,
            **pool_fields_of(stored),
            **repeats_of(row.task),
            "state": str(row.state),
            "cluster": row.cluster,
            "attempt": row.attempt,
            "code": last.code,
            "sentence": (completion.message if completion else "") or last.sentence,
            "attempts": [one.to_dict() for one in attempts_of(row.history, fences)],
            "decision": None if row.decision is None else row.decision.in_full().to_dict(),
            "history": [step.to_dict() for step in shown_history(row.history)],
        }

    def member_explanation(self, gang: StoredItem, member: str) -> dict[str, Any]:
        """The explanation of the gang, and which of its members this is."""
        described = decode_task(gang)[0].gang
        names = [] if described is None else [one.name for one in described.members]
        return {**self.explanation(gang), "member": member_summary(member, names)}

    def job(self, stored: StoredItem, ray_id: Callable[[str, int], str]) -> dict[str, Any]:
        """A job in the form of Ray's job API. Raises UnknownItemError if the item is no job."""
        row = decode_row(stored, self._store.steps(stored.new.id), None)
        return job_document(row, row.state, row.history[-1].sentence, ray_id)

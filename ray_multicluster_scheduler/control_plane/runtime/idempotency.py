"""Idempotent submission: find the item that a submission repeats, or refuse an id or key that has another meaning.

:class:`IdempotencyIndex` finds items by id, by (owner, idempotency key) and by content key. :func:`check_same_item`
compares a submission with the item that has its id or key already.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.redaction import MASKED, mask_text
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord

_MAX_SHOWN = 60
_LABELS = frozenset({"metadata", "name"})
_DIFFERENCES = {
    "function_digest": "its code is not the same",
    "arguments_digest": "its arguments are not the same",
    "members": "its members are not the same",
    "metadata": "its metadata has other keys",
    "repeats": "it is not a retry of the same item",
}
_DIGESTS = frozenset({"function_digest", "arguments_digest"})


class IdempotencyIndex:
    """The items of one control plane by id, (owner, idempotency key) and content key.

    :meth:`get` and :attr:`live` may be read from any thread. The owner holds one lock around everything else.
    """

    def __init__(self, record: Callable[[str], TaskRecord | None]) -> None:
        """``record`` looks up an item that the scheduler still has a record of."""
        self._record = record
        self.live: dict[str, Item] = {}
        """Unfinished items by id, oldest first."""
        self.finished: weakref.WeakValueDictionary[str, Item] = weakref.WeakValueDictionary()
        """Finished items by id that are retained or referenced by a handle."""
        self._retained: dict[str, Item] = {}
        self._ids_by_key: dict[tuple[str, str], str] = {}
        self._ids_by_content: dict[str, str] = {}

    def get(self, item_id: str) -> Item | None:
        """The item with this id, if it is unfinished, retained, or referenced by a handle."""
        return self.live.get(item_id) or self.finished.get(item_id)

    def by_key(self, owner: str, key: str) -> Item | None:
        """The item that this owner submitted with this idempotency key."""
        item_id = self._ids_by_key.get((owner, key))
        return None if item_id is None else self.get(item_id)

    def find(self, task: TaskDescription) -> Item | None:
        """The item that this submission repeats: by key, then id, then content. Raises ConfigurationError if the key or
        the id belongs to a different item."""
        key = task.idempotency_key
        item_id = None if key is None else self._ids_by_key.get((task.owner, key))
        known = self.get(item_id or task.id)
        if known is not None:
            check_same_item(task, known.task)
            return known
        record = self._record(task.id)
        if record is not None:
            raise id_conflict(task, record.task)
        return self.get(self._ids_by_content.get(task.content_key or "", ""))

    def add(self, item: Item, *, match_content: bool = True) -> None:
        """Add an unfinished item. Without ``match_content``, submissions with equal content are items of their own."""
        task = item.task
        self.live[task.id] = item
        if task.idempotency_key is not None:
            self._ids_by_key[task.owner, task.idempotency_key] = task.id
        if match_content and task.content_key is not None:
            self._ids_by_content[task.content_key] = task.id

    def stop_matching_content(self, task: TaskDescription) -> None:
        """From now on a submission with the content of this item is an item of its own."""
        if task.content_key is not None and self._ids_by_content.get(task.content_key) == task.id:
            del self._ids_by_content[task.content_key]

    def finish(self, item: Item, *, retain: bool) -> None:
        """Mark an item as finished. With ``retain`` it is found until :meth:`forget`, else while a handle refers to
        it."""
        if retain:
            self._retained[item.id] = item
        self.finished[item.id] = item
        del self.live[item.id]
        self.stop_matching_content(item.task)

    def forget(self, task: TaskDescription) -> None:
        """Remove a finished item, which frees its id and its key."""
        self._retained.pop(task.id, None)
        self.finished.pop(task.id, None)
        self._ids_by_key.pop((task.owner, task.idempotency_key or ""), None)


def check_same_item(
    asked: TaskDescription, first: TaskDescription, *, adopted: bool = False, header: bool = False
) -> None:
    """Raises ConfigurationError if ``asked`` differs from ``first``, which has the same id or key.

    - Same id: the digests of code and arguments are compared; the name is only a label.
    - Same key, given by a program: the next run of the program repeats the key, but its pickles may have other bytes,
      so the name identifies the function instead of the digests.
    - Same key, given in a request ``header``: the key belongs to one exact request, so everything is compared.
    - ``adopted``: only the kind of ``first`` is known here; the service compares the rest.
    """
    if asked is first:
        return
    if asked.kind != first.kind:
        raise id_conflict(asked, first)
    mine, its = _identity(asked), _identity(first)
    fields = [] if adopted else [*mine]
    ignored: frozenset[str] = frozenset() if header else _LABELS
    if ignored and asked.id != first.id:
        ignored = (ignored if asked.kind == "job" else frozenset({"metadata"})) | _DIGESTS
    comparable = [one for one in fields if MASKED not in (mine[one], its[one])]  # a masked value cannot be compared
    differs = [one for one in comparable if one not in ignored and mine[one] != its[one]]
    if differs:
        taken = f"The id {first.id}" if asked.id == first.id else f"The key {asked.idempotency_key!r}, of {first.id},"
        raise ConfigurationError(
            f"{taken} was used for another {first.kind}: {_difference(differs[0], mine, its)}.",
            task_id=first.id,
            next_step="give each item its own id or key, and reuse one only to submit the same item again",
        )


def id_conflict(asked: TaskDescription, first: TaskDescription) -> ConfigurationError:
    return ConfigurationError(
        f"{asked.kind} {mask_text(asked.name)} was given an id or a key that belongs to {first.kind_with_article}: "
        f"{first.id}.",
        task_id=asked.id,
        next_step="use another submission_id or idempotency_key",
    )


def _identity(task: TaskDescription) -> dict[str, Any]:
    """The fields that identify what an item runs, with secrets masked as they are in the store."""
    job, gang = task.job, task.gang
    members = () if gang is None else gang.members
    shapes = [(one.name, dict(one.requirements)) for one in members]
    return {
        "entrypoint": None if job is None else mask_text(job.entrypoint),
        "name": mask_text(task.name),
        "requirements": dict(task.requirements),
        "entrypoint_resources": None if job is None else dict(job.entrypoint_resources),
        "metadata": None if job is None else sorted(job.metadata),
        "members": None if gang is None else (gang.of, gang.strategy, shapes),
        "repeats": task.repeats,
        "function_digest": (task.function_digest, *(one.function_digest for one in members)),
        "arguments_digest": (task.arguments_digest, *(one.arguments_digest for one in members)),
    }


def _difference(field: str, mine: dict[str, Any], its: dict[str, Any]) -> str:
    if field in _DIFFERENCES:
        return _DIFFERENCES[field]
    before, now = (text[:_MAX_SHOWN] + "…" * (len(text) > _MAX_SHOWN) for text in (repr(its[field]), repr(mine[field])))
    return f"its {field} is {before}, and now it is {now}"


def check_own_id(item: Item, options: Mapping[str, Any]) -> Item:
    """Returns the item. Raises ConfigurationError if it has the ``idempotency_key`` of the job but another
    ``submission_id``."""
    own, key = options.get("submission_id"), options.get("idempotency_key")
    if own is not None and key is not None and item.id != own and item.task.idempotency_key == key:
        raise key_conflict(str(own), item.id, str(key))
    return item


def key_conflict(own: str, first: str, key: str) -> ConfigurationError:
    return ConfigurationError(
        f"{own} was given the key {key!r}, which was used for {first}.",
        task_id=own,
        next_step="give each item its own key; a repeated submission has the same id, or none",
    )

"""Is what was submitted under an id or a key that is taken the same once more, or something else that would be lost?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.model.gang_description import GangDescription
from ray_multicluster_scheduler.common.redaction import MASKED, mask_text
from ray_multicluster_scheduler.control_plane.runtime.item import Item

_LONGEST = 60
_LABELS = frozenset({"metadata", "name"})
_DIGESTS = frozenset({"function_digest", "arguments_digest"})


def check_same_item(
    asked: TaskDescription, first: TaskDescription, *, adopted: bool = False, header: bool = False
) -> None:
    """Raises ConfigurationError if ``asked`` is something else than ``first``, which has its id or its key already.

    Of one with the same id the digests of its code and its arguments are compared, and its name is but a label. A key
    that a program gives is the same in its next run, whose pickles may have other bytes: there the name stands for the
    function. A key in a ``header`` is for that very request: everything is compared. Of one that was ``adopted`` only
    its kind is known for sure; its service judges the rest.
    """
    if asked is first:
        return
    if asked.kind != first.kind:
        raise id_conflict(asked, first)
    mine, its = _identity(asked), _identity(first)
    words = [] if adopted else [*mine]
    left_out: frozenset[str] = frozenset() if header else _LABELS
    if left_out and asked.id != first.id:
        left_out = (left_out if asked.kind == "job" else frozenset({"metadata"})) | _DIGESTS
    known = [one for one in words if MASKED not in (mine[one], its[one])]  # of what is sealed nothing can be said
    differs = [one for one in known if one not in left_out and mine[one] != its[one]]
    if differs:
        taken = f"The id {first.id}" if asked.id == first.id else f"The key {asked.idempotency_key!r}, of {first.id},"
        raise ConfigurationError(
            f"{taken} was used for another {first.kind}: {_said(differs[0], mine, its)}.",
            task_id=first.id,
            next_step="give each item an id or a key of its own, and the same one only to a repeat",
        )


def id_conflict(asked: TaskDescription, first: TaskDescription) -> ConfigurationError:
    has = f"{first.kind_with_article} has: {first.id}."
    return ConfigurationError(
        f"{asked.kind} {mask_text(asked.name)} was given an id or a key that {has}",
        task_id=asked.id,
        next_step="use another submission_id or idempotency_key",
    )


def _identity(task: TaskDescription) -> dict[str, Any]:
    """What is run, and with what. Secrets are covered, as they are where it is kept."""
    job = task.job
    return {
        "entrypoint": None if job is None else mask_text(job.entrypoint),
        "name": mask_text(task.name),
        "requirements": dict(task.requirements),
        "entrypoint_resources": None if job is None else dict(job.entrypoint_resources),
        "metadata": None if job is None else sorted(job.metadata),
        "members": None if task.gang is None else _members(task.gang),
        "repeats": task.repeats,
        "function_digest": (task.function_digest, *(one.function_digest for one in _all(task))),
        "arguments_digest": (task.arguments_digest, *(one.arguments_digest for one in _all(task))),
    }


def _all(task: TaskDescription) -> tuple[Any, ...]:
    return () if task.gang is None else task.gang.members


def _members(gang: GangDescription) -> tuple[Any, ...]:
    return gang.of, gang.strategy, [(one.name, dict(one.requirements)) for one in gang.members]


def _said(word: str, mine: dict[str, Any], its: dict[str, Any]) -> str:
    match word:
        case "function_digest":
            return "its code is not the same"
        case "arguments_digest":
            return "its arguments are not the same"
        case "members":
            return "its members are not the same"
        case "metadata":
            return "its metadata have other names"
        case "repeats":
            return "it is no repetition of the same item"
    return f"its {word} is {_short(its[word])}, and now it is {_short(mine[word])}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def check_own_id(item: Item, options: Mapping[str, Any]) -> Item:
    """The same. Raises ConfigurationError if it has the job's ``idempotency_key`` and another ``submission_id``."""
    own, key = options.get("submission_id"), options.get("idempotency_key")
    if own is not None and key is not None and item.id != own and item.task.idempotency_key == key:
        raise key_conflict(str(own), item.id, str(key))
    return item


def key_conflict(own: str, first: str, key: str) -> ConfigurationError:
    return ConfigurationError(
        f"{own} was given the key {key!r}, which was used for {first}.",
        task_id=own,
        next_step="give each item a key of its own; a repeat has the same id, or none",
    )

"""The keyword options of the submit verbs, by kind of item: read from the annotations of the description classes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from ray_multicluster_scheduler.common.model.actor_description import ActorDescription
from ray_multicluster_scheduler.common.model.gang_description import GangDescription
from ray_multicluster_scheduler.common.model.item_fields import ALL_KINDS, FieldSpec, Flag, ItemField, fields_of
from ray_multicluster_scheduler.common.model.job_description import JobDescription
from ray_multicluster_scheduler.common.model.task_description import TaskDescription


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Options that decide how an item is submitted, and are not stored with it."""

    dedup: Annotated[
        Literal["none", "content"] | None,
        FieldSpec(
            "content: an unfinished equal item (function, arguments, requirements, placement) is returned instead.",
            ALL_KINDS,
            setting=True,
        ),
    ] = None
    get_if_exists: Annotated[
        Flag, FieldSpec("If a living actor has that name, it is returned instead.", ("actor",))
    ] = False


DESCRIPTIONS = (TaskDescription, JobDescription, ActorDescription, GangDescription, SubmitOptions)


@functools.cache
def options_of(kind: str) -> Mapping[str, ItemField]:
    """The keyword arguments of the submit verb of a kind, by the name of the keyword."""
    found = (one for description in DESCRIPTIONS for one in fields_of(description).values())
    return {one.spec.keyword or one.name: one for one in found if kind in one.spec.options}
